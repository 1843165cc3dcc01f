// What stands where an answer is not there, or is no longer sure.
import { useSignal, type ReadonlySignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect } from 'preact/hooks'
import type { RequestError } from '../client'
import { now } from '../format'
import { connection } from '../live'
import type { Answer } from '../query'
import { refresh } from '../query'
import { Age } from './time'

/** Loading is drawn where an answer takes longer than 200 ms. */
export function Loading({ lines = 3 }: { lines?: number }) {
  const late = useSignal(false)
  useEffect(() => {
    const timer = setTimeout(() => (late.value = true), 200)
    return () => clearTimeout(timer)
  }, [])
  if (!late.value) return null
  return (
    <div class="skeleton" role="status">
      <span class="visually-hidden">Loading</span>
      {Array.from({ length: lines }, (_, i) => (
        <span key={i} class="skeleton-line" aria-hidden="true" />
      ))}
    </div>
  )
}

/** Problem says why there is no answer, and what to do. */
export function Problem({ error, at }: { error: RequestError; at?: number }) {
  const failedAt = useSignal(Date.now())
  useEffect(() => {
    failedAt.value = Date.now()
  }, [error])
  const left = error.retryAfter ? Math.max(0, Math.ceil(error.retryAfter - (now.value - failedAt.value) / 1000)) : undefined
  return (
    <div class="banner banner-bad" role="alert">
      <p>
        <strong>{titleOf(error.status)}</strong> {error.message}
      </p>
      <p class="muted">
        {at !== undefined && (
          <>
            What is shown is <Age at={at} /> old.{' '}
          </>
        )}
        {left !== undefined && left > 0 && <>The next try is in {left} s. </>}
        {error.status !== 403 && (
          <button type="button" class="button button-quiet" onClick={() => refresh()}>
            Try again
          </button>
        )}
      </p>
    </div>
  )
}

function titleOf(status: number): string {
  switch (status) {
    case 0:
      return 'Not reached:'
    case 403:
      return 'Not allowed:'
    case 404:
      return 'Not found:'
    case 503:
      return 'Not available:'
    default:
      return 'Failed:'
  }
}

/** Shown draws an answer. One that could not be asked for again stays, dimmed, with its age. */
export function Shown<T>({ answer, children, lines }: { answer: ReadonlySignal<Answer<T>>; children: (value: T) => ComponentChildren; lines?: number }) {
  const { value, at, error } = answer.value
  if (value === undefined) return error ? <Problem error={error} /> : <Loading lines={lines} />
  return (
    <>
      {error && <Problem error={error} at={at} />}
      <div class={error ? 'stale' : undefined}>{children(value)}</div>
    </>
  )
}

/** ConnectionBanner says where the page no longer hears of changes by itself. */
export function ConnectionBanner() {
  if (connection.value !== 'polling') return null
  return (
    <div class="banner banner-attention" role="status">
      The stream of changes is lost: the page asks every 15 s until it is back.
    </div>
  )
}

/** Empty says that there is nothing, and what brings something. */
export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p>
        <strong>{title}</strong>
      </p>
      {children}
    </div>
  )
}
