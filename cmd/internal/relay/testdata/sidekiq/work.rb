# Jobs that tell a list of Redis what they were given. The second class fails once.
require "json"
require "sidekiq"

class WelcomeJob
  include Sidekiq::Worker

  def perform(*args)
    Sidekiq.redis { |r| r.rpush("done", JSON.generate([jid, args])) }
  end
end

class FailingJob
  include Sidekiq::Worker

  def perform(*args)
    raise "it fails"
  end
end
