# What Sidekiq itself sees in a queue.
require "json"
require "sidekiq/api"

queue = Sidekiq::Queue.new("mailers")
jobs = queue.map { |j| { class: j.klass, args: j.args, created_at: j.created_at.to_f, enqueued_at: j.enqueued_at.to_f, tags: j["source"] } }
puts JSON.generate({ queues: Sidekiq::Queue.all.map(&:name), latency: queue.latency, jobs: jobs })
