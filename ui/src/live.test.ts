import { afterEach, beforeEach, expect, test, vi } from 'vitest'

class Stream {
  static readonly CLOSED = 2
  static opened: Stream[] = []
  readyState = 1
  onopen?: () => void
  onerror?: () => void
  onmessage?: (message: { data: string }) => void
  constructor() {
    Stream.opened.push(this)
  }
  close(): void {
    this.readyState = Stream.CLOSED
  }
  send(event: object): void {
    this.onmessage?.({ data: JSON.stringify(event) })
  }
}

const handlers: Record<string, () => void> = {}
const page = { hidden: false, addEventListener: (name: string, handler: () => void) => (handlers[name] = handler) }

let live: typeof import('./live')
let changed: number

beforeEach(async () => {
  vi.useFakeTimers()
  vi.resetModules()
  vi.stubGlobal('EventSource', Stream)
  vi.stubGlobal('document', page)
  vi.stubGlobal('window', page)
  Stream.opened = []
  page.hidden = false
  live = await import('./live')
  changed = 0
  live.onChange(['policy'], () => changed++)
  live.follow()
})

afterEach(() => vi.useRealTimers())

function lastStream(): Stream {
  return Stream.opened.at(-1)!
}

test('answers from before the first event of a stream are asked for again', () => {
  lastStream().onopen?.()
  expect(changed).toBe(0)
  lastStream().send({ seq: 'a.3', topics: [] })
  expect(changed).toBe(1)
  lastStream().send({ seq: 'a.4', topics: ['images'] })
  expect(changed).toBe(1)
  lastStream().send({ seq: 'a.5', topics: ['policy', 'nonsense'] })
  expect(changed).toBe(2)
  lastStream().send({ seq: 'b.1', topics: [], reset: true })
  expect(changed).toBe(3)
})

test('what is no event is not the first one', () => {
  lastStream().onmessage?.({ data: '{' })
  expect(changed).toBe(0)
  lastStream().send({ seq: 'a.3', topics: [] })
  expect(changed).toBe(1)
})

test('a stream that was lost goes on from its last event', () => {
  lastStream().onopen?.()
  lastStream().send({ seq: 'a.3', topics: [] })
  lastStream().onerror?.()
  vi.advanceTimersByTime(10_000)
  lastStream().onopen?.()
  expect(changed).toBe(2)
  lastStream().send({ seq: 'a.4', topics: [] })
  expect(changed).toBe(2)
})

test('a stream that ends, as each does after a while, and is opened again is not lost', () => {
  lastStream().onopen?.()
  lastStream().send({ seq: 'a.3', topics: [] })
  lastStream().readyState = 0
  lastStream().onerror?.()
  vi.advanceTimersByTime(5000)
  expect(live.connection.value).toBe('live')
  lastStream().onopen?.()
  vi.advanceTimersByTime(60_000)
  expect(live.connection.value).toBe('live')
  expect(changed).toBe(1)
})

test('a stream that is not opened again is lost', () => {
  lastStream().onopen?.()
  lastStream().send({ seq: 'a.3', topics: [] })
  lastStream().readyState = 0
  lastStream().onerror?.()
  vi.advanceTimersByTime(10_000)
  expect(live.connection.value).toBe('polling')
  expect(changed).toBe(1)
  vi.advanceTimersByTime(5000)
  expect(changed).toBe(2)
})

test('a stream that is refused is lost at once, and another one is tried', () => {
  lastStream().readyState = Stream.CLOSED
  lastStream().onerror?.()
  expect(live.connection.value).toBe('polling')
  vi.advanceTimersByTime(15_000)
  expect(Stream.opened).toHaveLength(2)
})

test('the stream of a hidden page is closed, not lost', () => {
  lastStream().onopen?.()
  lastStream().readyState = 0
  lastStream().onerror?.()
  page.hidden = true
  handlers.visibilitychange!()
  vi.advanceTimersByTime(60_000)
  expect(live.connection.value).toBe('live')
})

test('another stream says nothing of what changed before it', () => {
  lastStream().send({ seq: 'a.3', topics: [] })
  handlers.online!()
  expect(Stream.opened).toHaveLength(2)
  lastStream().send({ seq: 'a.9', topics: [] })
  expect(changed).toBe(2)
})

test('a page that is seen again asks at once, and after the first event', () => {
  lastStream().send({ seq: 'a.3', topics: [] })
  page.hidden = true
  handlers.visibilitychange!()
  expect(lastStream().readyState).toBe(Stream.CLOSED)
  page.hidden = false
  handlers.visibilitychange!()
  expect(changed).toBe(2)
  lastStream().send({ seq: 'a.9', topics: [] })
  expect(changed).toBe(3)
})

test('a stream that hangs while it opens is lost', () => {
  expect(live.connection.value).toBe('connecting')
  vi.advanceTimersByTime(8000)
  expect(live.connection.value).toBe('polling')
  vi.advanceTimersByTime(7000)
  expect(changed).toBe(1)
  lastStream().onopen?.()
  expect(live.connection.value).toBe('live')
  expect(changed).toBe(2)
  vi.advanceTimersByTime(60_000)
  expect(changed).toBe(2)
})

test('a stream that hangs after the network has returned is lost', () => {
  lastStream().onopen?.()
  lastStream().readyState = 0
  lastStream().onerror?.()
  vi.advanceTimersByTime(3000)
  handlers.online!()
  lastStream().readyState = 0
  vi.advanceTimersByTime(7999)
  expect(live.connection.value).toBe('live')
  vi.advanceTimersByTime(1)
  expect(live.connection.value).toBe('polling')
  vi.advanceTimersByTime(15_000)
  expect(changed).toBeGreaterThan(0)
})

test('a stream that hangs when the network returns without an error before is lost', () => {
  lastStream().onopen?.()
  handlers.online!()
  lastStream().readyState = 0
  vi.advanceTimersByTime(8000)
  expect(live.connection.value).toBe('polling')
})

test('a stream that hangs when a page is seen again is lost', () => {
  lastStream().onopen?.()
  page.hidden = true
  handlers.visibilitychange!()
  vi.advanceTimersByTime(60_000)
  page.hidden = false
  handlers.visibilitychange!()
  lastStream().readyState = 0
  vi.advanceTimersByTime(8000)
  expect(live.connection.value).toBe('polling')
})

test('the stream of a person ends with their session, and the next has one of their own', async () => {
  const { session } = await import('./session')
  const signedIn = (user: string) => ({ state: 'signedIn' as const, me: { user, may: [], mode: 'token' as const } })
  session.value = signedIn('anna')
  const [anna] = Stream.opened
  session.value = { state: 'signedOut' }
  expect(anna!.readyState).toBe(Stream.CLOSED)
  handlers.online?.()
  expect(Stream.opened, 'nobody is there to follow').toHaveLength(1)
  session.value = signedIn('ben')
  live.follow()
  expect(Stream.opened).toHaveLength(2)
  // A proxy signs another person in without a page between.
  session.value = signedIn('lena')
  expect(Stream.opened.map((s) => s.readyState)).toEqual([Stream.CLOSED, Stream.CLOSED, 1])
})
