'use strict'
const postgres = require('postgres')

const channel = 'Orders "new"'
const show = (text) => process.stdout.write(text + '\n')

async function yourTurn() {
  const sql = postgres({ max: 1, onnotice: () => {} })
  await sql
    .begin(async (tx) => {
      await tx`SELECT pg_notify(${channel}, 'rolled back')`
      throw new Error('back')
    })
    .catch((error) => {
      if (error.message !== 'back') throw error
    })
  await sql.begin((tx) => tx`SELECT pg_notify(${channel}, 'committed')`)
  await sql.notify(channel, 'it\'s a "parameter" €')
  await sql.end()
}

async function main() {
  // It connects and listens again by itself, with a backoff, and calls the third argument each time.
  const sql = postgres({ backoff: () => 0.05 })
  const stopped = new Promise((resolve, reject) => {
    const listen = () =>
      sql
        .listen(
          channel,
          (payload) => {
            show(JSON.stringify({ channel, payload }))
            if (payload === 'your turn') yourTurn().then(() => show('done'), reject)
            if (payload === 'stop') resolve()
          },
          () => show('listening')
        )
        .catch(() => setTimeout(listen, 50))
    listen()
  })
  await stopped
  await sql.end({ timeout: 1 })
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
