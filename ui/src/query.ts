// Answers that a page shows, asked for again when something of them changes.
import { signal, useComputed, type ReadonlySignal, type Signal } from '@preact/signals'
import { useEffect, useMemo } from 'preact/hooks'
import type { Topic } from './api'
import { getJSON, RequestError, withParams, type Params } from './client'
import { onChange } from './live'
import { noteRefusal } from './session'

/** What is known of an answer. A value stays when a later request fails: it is then stale, and is never removed. */
export interface Answer<T> {
  value?: T
  /** When the value arrived, in milliseconds. */
  at?: number
  error?: RequestError
}

interface Entry {
  answer: Signal<Answer<unknown>>
  users: number
  request: () => void
  end: () => void
}

const entries = new Map<string, Entry>()

/** The shortest time between two requests for the same answer, where a page does not ask for a longer one. */
const quietMilliseconds = 1000

function newEntry(path: string, topics: readonly Topic[], every: number): Entry {
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
    void getJSON(path, abort.signal)
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

function acquire(path: string, topics: readonly Topic[], every: number): Entry {
  let entry = entries.get(path)
  if (!entry) {
    entry = newEntry(path, topics, every)
    entries.set(path, entry)
  }
  entry.users++
  return entry
}

function release(path: string): void {
  const entry = entries.get(path)
  if (!entry || --entry.users > 0) return
  // A page that is left and returned to within a moment finds its answers.
  setTimeout(() => {
    if (entry.users === 0 && entries.get(path) === entry) {
      entries.delete(path)
      entry.end()
    }
  }, 5000)
}

/** Asks for an answer of the read API, such as useAnswer<Summary>('summary', {}, ['members']). Without a path nothing is asked for. What is large, or changes slowly, is asked for at most so often, in milliseconds. */
export function useAnswer<T>(path: string | undefined, params: Params, topics: readonly Topic[], every = quietMilliseconds): ReadonlySignal<Answer<T>> {
  return usePath<T>(path === undefined ? undefined : withParams('/fleet/v1/' + path, params), topics, every)
}

/** Asks for an object of the API server, such as '/apis/pelotech.ot/v1alpha1/fleetdiskimages/ubuntu'. */
export function useObject<T>(path: string | undefined, topics: readonly Topic[]): ReadonlySignal<Answer<T>> {
  return usePath<T>(path === undefined ? undefined : '/k8s' + path, topics, quietMilliseconds)
}

const nothing = signal<Answer<unknown>>({})

function usePath<T>(path: string | undefined, topics: readonly Topic[], every: number): ReadonlySignal<Answer<T>> {
  const current = useMemo(() => signal<Signal<Answer<unknown>>>(nothing), [])
  useEffect(() => {
    if (path === undefined) {
      current.value = nothing
      return undefined
    }
    const entry = acquire(path, topics, every)
    current.value = entry.answer
    return () => release(path)
  }, [path])
  return useComputed(() => current.value.value as Answer<T>)
}

/** Asks again for answers, after a change that this page made. */
export function refresh(...paths: string[]): void {
  for (const [key, entry] of entries) {
    if (paths.length === 0 || paths.some((p) => key.startsWith('/fleet/v1/' + p) || key.startsWith('/k8s' + p))) entry.request()
  }
}
