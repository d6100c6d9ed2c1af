// kafkajs as a program: `node main.js NAME write|read|version ...`; tests/clients/programs.py describes the arguments.
const { Kafka, Partitioners, logLevel } = require('kafkajs')
const fs = require('node:fs')

const PARTITIONERS = { kafkajs: Partitioners.DefaultPartitioner, 'kafkajs-legacy': Partitioners.LegacyPartitioner }
const TIMEOUT_MS = 60_000

const bytes = (text) => (text === null ? null : Buffer.from(text, 'base64'))

const client = (bootstrap) =>
  new Kafka({ brokers: bootstrap.split(','), clientId: 'clients', logLevel: logLevel.ERROR, requestTimeout: TIMEOUT_MS })

async function write(name, bootstrap, topic) {
  const lines = fs.readFileSync(0, 'utf8').split('\n').filter((line) => line)
  const messages = lines.map((line) => {
    const record = JSON.parse(line)
    const headers = Object.fromEntries(record.headers.map(([header, value]) => [header, bytes(value)]))
    return { key: bytes(record.key), value: bytes(record.value), headers }
  })
  const producer = client(bootstrap).producer({ createPartitioner: PARTITIONERS[name] })
  await producer.connect()
  await producer.send({ topic, messages, acks: -1 })
  await producer.disconnect()
  console.log(JSON.stringify({ written: messages.length }))
}

async function read(bootstrap, topic, end) {
  const consumer = client(bootstrap).consumer({ groupId: `clients-${process.pid}`, readUncommitted: false })
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: true })
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer
      .run({
        autoCommit: false,
        eachMessage: async ({ message }) => {
          console.log(JSON.stringify({ value: message.value.toString('base64') }))
          if (message.value.toString() === end) resolve()
        },
      })
      .catch(reject)
  })
  await consumer.disconnect()
}

const [name, verb, ...rest] = process.argv.slice(2)
process.env.KAFKAJS_NO_PARTITIONER_WARNING = '1'
const done =
  verb === 'write' ? write(name, ...rest) : verb === 'read' ? read(...rest) : Promise.resolve(console.log(require('kafkajs/package.json').version))
done.then(
  () => process.exit(0),
  (error) => {
    console.error(error)
    process.exit(1)
  },
)
