import { afterEach, beforeEach, expect, test, vi } from 'vitest'
import type { Topic } from './api'

const effects: (() => void)[] = []
const requests: string[] = []
const listeners = new Set<{ of: readonly Topic[]; listener: () => void }>()

// Without a browser there are no components: effects run at once, and end when a test says so.
vi.mock('preact/hooks', () => ({ useMemo: (make: () => unknown) => make(), useEffect: (run: () => () => void) => effects.push(run()) }))
const otherPerson = new Set<() => void>()
vi.mock('./session', () => ({ noteRefusal: () => undefined, onOtherPerson: (listener: () => void) => otherPerson.add(listener) }))
vi.mock('./live', () => ({
  onChange: (of: readonly Topic[], listener: () => void) => {
    const entry = { of, listener }
    listeners.add(entry)
    return () => listeners.delete(entry)
  },
}))
vi.mock('./client', async (original) => ({
  ...(await original<typeof import('./client')>()),
  getJSON: (path: string) => {
    requests.push(path)
    return Promise.resolve({ of: path })
  },
}))

let query: typeof import('./query')

beforeEach(async () => {
  vi.useFakeTimers()
  vi.resetModules()
  listeners.clear()
  otherPerson.clear()
  effects.length = requests.length = 0
  query = await import('./query')
})

afterEach(() => vi.useRealTimers())

async function change(topic: Topic): Promise<void> {
  for (const { of, listener } of [...listeners]) if (of.includes(topic)) listener()
  await vi.advanceTimersByTimeAsync(1000)
}

/** Leaves a page, as its components do. */
function leave(): void {
  for (const end of effects.splice(0)) end()
}

test('an answer that another page asked for is asked for again after all topics of this one', async () => {
  query.useAnswer('summary', {}, ['members', 'transfers'])
  await vi.advanceTimersByTimeAsync(1000)
  leave()
  query.useAnswer('summary', {}, ['members', 'transfers', 'prunes'])
  await vi.advanceTimersByTimeAsync(1000)
  const before = requests.length
  await change('prunes')
  expect(requests).toHaveLength(before + 1)
  await vi.advanceTimersByTimeAsync(5000)
  await change('prunes')
  expect(requests).toHaveLength(before + 2)
})

test('uses with the same topics share an answer, in whatever order they are named', async () => {
  query.useAnswer('summary', {}, ['members', 'transfers'])
  const second = query.useAnswer('summary', {}, ['transfers', 'members'])
  await vi.advanceTimersByTimeAsync(1000)
  expect(requests).toEqual(['/fleet/v1/summary'])
  expect(second.value.value).toEqual({ of: '/fleet/v1/summary' })
})

test('the value of a folded answer is not the answer', async () => {
  const fold = { since: () => '1', apply: () => 'folded' }
  query.useAnswer('matrix', {}, ['images'])
  const folded = query.useFolded('matrix', {}, ['images'], fold)
  await vi.advanceTimersByTimeAsync(1000)
  expect(folded.value.value).toBe('folded')
})

test('a page that changed something asks again for all answers to a path', async () => {
  query.useAnswer('summary', {}, ['members'])
  query.useAnswer('summary', {}, ['prunes'])
  query.useAnswer('policy', {}, ['policy'])
  await vi.advanceTimersByTimeAsync(1000)
  query.refresh('summary')
  await vi.advanceTimersByTimeAsync(1000)
  expect(requests.slice(3)).toEqual(['/fleet/v1/summary', '/fleet/v1/summary'])
})

test('who signs in after another person has no answer before an own request', async () => {
  const first = query.useAnswer('policy', {}, ['policy'])
  await vi.advanceTimersByTimeAsync(1000)
  expect(first.value.value).toEqual({ of: '/fleet/v1/policy' })
  for (const listener of otherPerson) listener()
  leave()
  const second = query.useAnswer('policy', {}, ['policy'])
  expect(second.value.value).toBeUndefined()
  expect(requests).toHaveLength(2)
  await vi.advanceTimersByTimeAsync(1000)
  expect(second.value.value).toEqual({ of: '/fleet/v1/policy' })
  await change('policy')
  expect(requests, 'of the second person alone').toHaveLength(3)
})
