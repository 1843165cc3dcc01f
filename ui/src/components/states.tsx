// What stands where an answer is not there, or is no longer sure.
import { useSignal, type ReadonlySignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import type { RequestError } from '../client'
import { now, plainText } from '../format'
import { connection } from '../live'
import type { Answer } from '../query'
import { refresh } from '../query'
import { isOlderHub, lackingRight, nameRight, type Right } from '../refused'
import { describeEnd, roleFor, session, signOutFailure } from '../session'
import { formatMessage } from './command'
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
export function Problem({ error, at, retry = refresh }: { error: RequestError; at?: number; retry?: () => void }) {
  const failedAt = useRef({ error, at: Date.now() })
  if (failedAt.current.error !== error) failedAt.current = { error, at: Date.now() }
  const left = error.retryAfter === undefined ? 0 : Math.ceil(error.retryAfter - Math.max(0, now.value - failedAt.current.at) / 1000)
  const older = isOlderHub(error.status, error.path, error.message)
  const right = error.status === 403 ? lackingRight(error.path, error.message) : undefined
  return (
    <div class={error.status === 403 || older ? 'banner banner-attention' : 'banner banner-bad'} role="alert">
      <p>
        <strong>{older ? 'This hub is older than the page:' : titleOf(error.status)}</strong> {older ? `it does not answer ${error.path.split('?')[0]} as the page asks.` : formatMessage(error.message, 1024)}
      </p>
      {older && <OlderHub />}
      {right && <Lacking right={right} />}
      <p class="banner-foot muted" aria-live="off">
        {at !== undefined && (
          <span>
            What is shown is <Age at={at} /> old.
          </span>
        )}
        {left > 0 && <span>The next try is in {left} s.</span>}
        {error.status !== 403 && !older && (
          <button type="button" class="button button-quiet" onClick={() => retry()}>
            Try again now
          </button>
        )}
      </p>
    </div>
  )
}

/** Lacking names the right that is lacking, and the role that has it. */
function Lacking({ right }: { right: Right }) {
  const role = roleFor(right.verb, right.resource)
  return (
    <>
      <p>
        It needs the right to <strong>{nameRight(right)}</strong>
        {role ? (
          <>
            , which ClusterRole <code>{role}</code> has. Ask who runs the hub for a binding, or <a href="/profile">see what you may do</a>.
          </>
        ) : (
          <>
            . <a href="/profile">See what you may do</a>.
          </>
        )}
      </p>
    </>
  )
}

function OlderHub() {
  if (session.value.state !== 'signedIn') return null
  const { version, hubVersion } = session.value.me
  return (
    <p>
      The page is of {version || 'an unknown version'}, the hub of {hubVersion || 'an unknown one'}. Upgrade the hub to see this; the other pages work on.
    </p>
  )
}

function titleOf(status: number): string {
  switch (status) {
    case 0:
      return 'The hub is not reached:'
    case 401:
      return 'Signed out:'
    case 403:
      return 'Not allowed:'
    case 404:
      return 'Not found:'
    case 502:
    case 503:
    case 504:
      return 'No hub answers now:'
    default:
      return 'Failed:'
  }
}

/** Shown draws an answer. One that could not be asked for again stays, dimmed, with its age. */
export function Shown<T>({ answer, children, lines }: { answer: ReadonlySignal<Answer<T>>; children: (value: T) => ComponentChildren; lines?: number }) {
  const { value, at, error, pending } = answer.value
  if (value === undefined) return error ? <Problem error={error} /> : <Loading lines={lines} />
  return (
    <>
      {error && <Problem error={error} at={at} />}
      <div class={error ? 'stale' : pending ? 'pending' : undefined} aria-busy={pending}>
        {children(value)}
      </div>
    </>
  )
}

/** ConnectionBanner says where the page no longer hears of changes by itself, and when the session is about to end. */
export function ConnectionBanner() {
  return (
    <>
      {connection.value === 'polling' && (
        <div class="banner banner-attention" role="status">
          The stream of changes is lost: the page asks every 15 s until it is back.
        </div>
      )}
      <SessionBanner />
      {signOutFailure.value && (
        <div class="banner banner-bad" role="alert">
          {plainText(signOutFailure.value, 600)} Try again, or close the browser.
        </div>
      )}
    </>
  )
}

const warnMilliseconds = 5 * 60_000

function SessionBanner() {
  if (session.value.state !== 'signedIn' || session.value.me.expiresAt === undefined) return null
  if (session.value.me.mode === 'proxy') return null // the proxy renews the token
  const left = Date.parse(session.value.me.expiresAt) - now.value
  if (!(left < warnMilliseconds)) return null
  return (
    <div class="banner banner-attention" role="status">
      {describeEnd(left)} You will be asked to sign in, and come back to this page.
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
