// A stream of events names what changed; a page then requests its answers again.
import { signal } from '@preact/signals'
import type { Topic } from './api'
import { onOtherPerson, session } from './session'

/** live: the stream is open, or was until a moment ago. polling: it is not, and pages request their answers every 15 s. Invariant: a stream that is not open within 8 s is lost. */
export const connection = signal<'connecting' | 'live' | 'polling'>('connecting')

const topics: Topic[] = ['members', 'images', 'rollouts', 'prunes', 'transfers', 'policy']
const pollMilliseconds = 15_000
/** How long a stream may take to open before it is said to be lost. The hub ends each after 10 minutes, and browsers open it again within 3 to 5 seconds. */
const openMilliseconds = 8000

type Listener = () => void
const listeners = new Map<Topic, Set<Listener>>(topics.map((t) => [t, new Set()]))

/** Calls a function after something of the topics changed. Returns how to end that. */
export function onChange(of: readonly Topic[], listener: Listener): () => void {
  for (const t of of) listeners.get(t)?.add(listener)
  return () => {
    for (const t of of) listeners.get(t)?.delete(listener)
  }
}

function notify(changed: readonly Topic[]): void {
  const called = new Set<Listener>()
  for (const t of changed) {
    for (const l of listeners.get(t) ?? []) called.add(l)
  }
  for (const l of called) l()
}

// The stream is authorized as the person before, and takes one of the places of all.
onOtherPerson(() => {
  close()
  if (following && session.peek().state === 'signedIn') open()
})

let following = false
let stream: EventSource | undefined
let poll: ReturnType<typeof setInterval> | undefined
let opening: ReturnType<typeof setTimeout> | undefined

/** Opens the stream, and keeps it open as long as the page is seen. */
export function follow(): void {
  open()
  if (following) return
  following = true
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) {
      close() // a hidden page costs the hub nothing
    } else if (!stream) {
      open()
      notify(topics)
    }
  })
  window.addEventListener('online', () => {
    close()
    open()
  })
}

function open(): void {
  if ((stream && stream.readyState !== EventSource.CLOSED) || document.hidden || session.peek().state === 'signedOut') return
  const opened = new EventSource('/fleet/v1/events')
  stream = opened
  opened.onopen = () => {
    if (connection.value === 'polling') notify(topics)
    connection.value = 'live'
    clearInterval(poll)
    poll = undefined
    endOpening()
  }
  awaitOpening()
  // A stream says what changes after it is opened. Answers that are asked for before its first event may be older than
  // that, and nothing else would say so: they are asked for again. A stream that is lost goes on from its last event.
  let isFirst = true
  opened.onmessage = (message) => {
    const event = parseEvent(message.data)
    if (!event) return
    notify(isFirst || event.reset ? topics : event.topics)
    isFirst = false
  }
  opened.onerror = () => {
    if (opened !== stream) return
    awaitOpening()
    // The browser opens a stream again that has ended, and not one that was refused.
    if (opened.readyState === EventSource.CLOSED) markLost()
  }
}

/** Bounds how long the stream may take to open, and polls until it is. A connection that hangs causes no event. */
function awaitOpening(): void {
  opening ??= setTimeout(markLost, openMilliseconds)
  poll ??= setInterval(() => {
    if (document.hidden || session.value.state === 'signedOut') return
    notify(topics)
    if (stream?.readyState === EventSource.CLOSED) {
      close()
      open()
    }
  }, pollMilliseconds)
}

function markLost(): void {
  endOpening()
  connection.value = 'polling'
}

function endOpening(): void {
  clearTimeout(opening)
  opening = undefined
}

function close(): void {
  stream?.close()
  stream = undefined
  endOpening()
}

/** Returns an event of the stream; nothing for what is none. */
export function parseEvent(data: string): { topics: Topic[]; reset: boolean } | undefined {
  try {
    const { topics: changed, reset } = JSON.parse(data) as { topics?: unknown; reset?: unknown }
    return { topics: Array.isArray(changed) ? topics.filter((t) => changed.includes(t)) : [], reset: reset === true }
  } catch {
    return undefined
  }
}
