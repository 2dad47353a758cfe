'use strict'
const pg = require('pg')

const channel = 'Orders "new"'
const show = (text) => process.stdout.write(text + '\n')

async function yourTurn() {
  const pool = new pg.Pool({ max: 1 })
  pool.on('error', () => {}) // of idle connections, when the server stops
  const client = await pool.connect()
  const quoted = client.escapeIdentifier(channel)
  await client.query('BEGIN')
  await client.query(`NOTIFY ${quoted}, 'rolled back'`)
  await client.query('ROLLBACK')
  await client.query('BEGIN')
  await client.query("SELECT pg_notify($1, 'committed')", [channel])
  await client.query('COMMIT')
  await client.query({ name: 'notify', text: 'SELECT pg_notify($1, $2)', values: [channel, 'it\'s a "parameter" €'] })
  client.release()
  await pool.end()
}

async function listen() {
  const client = new pg.Client()
  const lost = new Promise((resolve) => client.once('end', () => resolve(false)))
  client.on('error', () => {})
  const stopped = new Promise((resolve, reject) => {
    client.on('notification', (n) => {
      show(JSON.stringify({ channel: n.channel, payload: n.payload }))
      if (n.payload === 'your turn') yourTurn().then(() => show('done'), reject)
      if (n.payload === 'stop') resolve(true)
    })
  })
  try {
    await client.connect()
    await client.query('LISTEN ' + client.escapeIdentifier(channel))
    show('listening')
  } catch {
    return false
  }
  const end = await Promise.race([lost, stopped])
  if (end) await client.end()
  return end
}

async function main() {
  while (!(await listen())) await new Promise((resolve) => setTimeout(resolve, 50))
}

main().catch((error) => {
  console.error(error)
  process.exit(1)
})
