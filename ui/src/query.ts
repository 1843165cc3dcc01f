// Answers that a page shows, asked for again when something of them changes.
import { computed, signal, type ReadonlySignal, type Signal } from '@preact/signals'
import { useEffect, useMemo } from 'preact/hooks'
import type { Topic } from './api'
import { answerTo, type Answer } from './asked'
import { getJSON, RequestError, withParams, type Params } from './client'
import { onChange } from './live'
import { noteRefusal, onOtherPerson } from './session'

export type { Answer }

interface Entry {
  answer: Signal<Answer<unknown>>
  users: number
  request: () => void
  end: () => void
}

/** How an answer is kept up to date by what changed since: the parameter of the next request, and the value with its answer. */
export interface Fold<T> {
  since: (value: T) => string
  apply: (before: T | undefined, answer: unknown) => T
}

const entries = new Map<string, Entry>()

// No answer to the person before is shown to the next.
onOtherPerson(() => {
  for (const entry of entries.values()) entry.end()
  entries.clear()
})

/** The shortest time between two requests for the same answer, where a page does not ask for a longer one. */
const quietMilliseconds = 1000

/** The shortest time between two requests for what changes with each report of a member. */
export const memberRefreshMilliseconds = 5000

async function fetchAnswer(path: string, before: unknown, signal: AbortSignal, fold: Fold<unknown> | undefined): Promise<unknown> {
  if (!fold) return getJSON(path, signal)
  if (before !== undefined) {
    const changes = await getJSON(`${path}${path.includes('?') ? '&' : '?'}since=${encodeURIComponent(fold.since(before))}`, signal)
    try {
      return fold.apply(before, changes)
    } catch {
      // they are of something else: a whole answer says all
    }
  }
  return fold.apply(undefined, await getJSON(path, signal))
}

function newEntry(path: string, topics: readonly Topic[], every: number, fold?: Fold<unknown>): Entry {
  const answer = signal<Answer<unknown>>({})
  const abort = new AbortController()
  let running = false
  let again = false
  let startedAt = 0
  let timer: ReturnType<typeof setTimeout> | undefined
  const request = (): void => {
    clearTimeout(timer)
    if (running) {
      again = true
      return
    }
    running = true
    startedAt = Date.now()
    void fetchAnswer(path, answer.value.value, abort.signal, fold)
      .then((value) => (answer.value = { value, at: Date.now() }))
      .catch((err: unknown) => {
        if (abort.signal.aborted) return
        const error = err instanceof RequestError ? err : new RequestError(0, String(err))
        noteRefusal(error)
        answer.value = { ...answer.value, error }
        if (error.retryAfter) timer = setTimeout(request, Math.min(error.retryAfter, 60) * 1000)
      })
      .finally(() => {
        running = false
        if (again) {
          again = false
          timer = setTimeout(request, every)
        }
      })
  }
  // The first change asks at once, those that follow it too soon ask together.
  const endChanges = onChange(topics, () => {
    clearTimeout(timer)
    timer = setTimeout(request, Math.max(0, startedAt + every - Date.now()))
  })
  request()
  return {
    answer,
    users: 0,
    request,
    end: () => {
      endChanges()
      clearTimeout(timer)
      abort.abort()
    },
  }
}

function acquire(key: string, path: string, topics: readonly Topic[], every: number, fold?: Fold<unknown>): Entry {
  let entry = entries.get(key)
  if (!entry) {
    entry = newEntry(path, topics, every, fold)
    entries.set(key, entry)
  }
  entry.users++
  return entry
}

function release(key: string): void {
  const entry = entries.get(key)
  if (!entry || --entry.users > 0) return
  // A page that is left and returned to within a moment finds its answers.
  setTimeout(() => {
    if (entry.users === 0 && entries.get(key) === entry) {
      entries.delete(key)
      entry.end()
    }
  }, 5000)
}

/** Asks for an answer of the read API, such as useAnswer<Summary>('summary', {}, ['members']). Without a path nothing is asked for. What is large, or changes slowly, is asked for at most so often, in milliseconds. */
export function useAnswer<T>(path: string | undefined, params: Params, topics: readonly Topic[], every = quietMilliseconds): ReadonlySignal<Answer<T>> {
  return usePath<T>(path === undefined ? undefined : withParams('/fleet/v1/' + path, params), topics, every)
}

/** Asks for an answer once, and then for what changed of it. */
export function useFolded<T>(path: string, params: Params, topics: readonly Topic[], fold: Fold<T>, every = quietMilliseconds): ReadonlySignal<Answer<T>> {
  return usePath<T>(withParams('/fleet/v1/' + path, params), topics, every, fold as Fold<unknown>)
}

const nothing = signal<Answer<unknown>>({})

function usePath<T>(path: string | undefined, topics: readonly Topic[], every: number, fold?: Fold<unknown>): ReadonlySignal<Answer<T>> {
  const asked = useMemo(() => signal<{ path?: string; answer: Signal<Answer<unknown>>; kept?: Answer<unknown> }>({ answer: nothing }), [])
  // The first drawing already shows what is known of this path: effects, which ask, run later.
  const shown = useMemo(() => computed(() => answerTo(path, { ...asked.value, answer: asked.value.answer.value }) as Answer<T>), [path])
  useEffect(() => {
    if (path === undefined) {
      asked.value = { answer: nothing }
      return undefined
    }
    const kept = shown.peek()
    const key = entryKey(path, topics, fold !== undefined)
    const entry = acquire(key, path, topics, every, fold)
    asked.value = { answer: entry.answer, path, kept: kept.value === undefined ? undefined : kept }
    return () => release(key)
  }, [path])
  return shown
}

/** Invariant: uses share an entry only if they depend on the same topics. The value of a folded answer is not the answer itself. */
function entryKey(path: string, topics: readonly Topic[], isFolded: boolean): string {
  return [path, ...[...topics].sort(), ...(isFolded ? ['folded'] : [])].join('#')
}

/** Asks again for answers, after a change that this page made. */
export function refresh(...paths: string[]): void {
  for (const [key, entry] of entries) {
    if (paths.length === 0 || paths.some((p) => key.startsWith('/fleet/v1/' + p) || key.startsWith('/k8s' + p))) entry.request()
  }
}
