// Changes by a person: what they reach is shown before, and the API server's answer after.
import { signal, useSignal } from '@preact/signals'
import type { ComponentChildren } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import { announce } from '../announce'
import { refusalOf, type Outcome, type Refusal } from '../outcome'
import { refresh } from '../query'
import { param, setParams } from '../route'
import { may, refreshSession, roleFor } from '../session'
import '../styles/write.css'
import { Command, CopyCommand, formatMessage } from './command'
import { Dialog } from './dialog'
import { Hint } from './hint'
import { Sign } from './sign'

export interface WriteProps {
  /** The parameter do of the address while the dialog is open, as approve or undo:autumn. It is unique on the page. */
  name: string
  /** The right that is needed, as in may(verb, resource). */
  verb: string
  resource: string
  /** On the button that opens the dialog, as in Approve… */
  label: string
  /** The heading of the dialog: what is done to which object. */
  title: string
  /** On the button that does it, as in Approve, and while it is done, as in Approving. */
  action: string
  running: string
  /** The command that does the same. */
  command: string
  danger?: boolean
  /** The one thing that this page is opened for. */
  primary?: boolean
  /** In a row of a table, without the right, only a button to copy the command. */
  compact?: boolean
  /** Why it cannot be done now, in one sentence. */
  blocked?: string
  /** Makes the change. What it throws is shown as the refusal. */
  run: () => Promise<Outcome>
  /** What the change reaches; drawn while the dialog is open. */
  children?: ComponentChildren
}

/** Write is a button for a change, and its dialog. Without the right it is the command to copy, and the role that has it. */
export function Write(props: WriteProps) {
  const { name, verb, resource, label, command, danger, primary, compact } = props
  if (!may(verb, resource)) {
    const role = roleFor(verb, resource)
    const note = `You lack the right to ${verb} ${resource}${role ? `: ClusterRole ${role} has it` : ''}.`
    if (compact) {
      return (
        <span class="write-denied">
          <CopyCommand text={command} />
          <Hint class="muted" text={note}>
            no right
          </Hint>
        </span>
      )
    }
    return (
      <div class="write-denied">
        <Command text={command} />
        <span class="muted">{note}</span>
      </div>
    )
  }
  return (
    <>
      <button type="button" class={primary ? 'button button-primary' : danger ? 'button button-danger' : 'button'} onClick={() => setParams({ do: name }, { replace: false })}>
        {label}
      </button>
      {param('do') === name && <WriteDialog {...props} />}
    </>
  )
}

type State = { at: 'asking'; refusal?: Refusal } | { at: 'running' }

function WriteDialog({ name, title, action, running, command, danger, blocked, run, children }: WriteProps) {
  const state = useSignal<State>({ at: 'asking' })
  const shown = useRef(true)
  useEffect(
    () => () => {
      shown.current = false
    },
    [],
  )
  const close = (): void => {
    // A change that is on its way cannot be taken back by closing: its end is waited for.
    if (state.value.at !== 'running') setParams({ do: undefined })
  }
  const go = async (): Promise<void> => {
    if (state.value.at === 'running' || blocked) return
    state.value = { at: 'running' }
    try {
      const outcome = await run()
      finished.value = { title, outcome }
      announce(outcome.text)
      if (param('do') === name) setParams({ do: undefined })
    } catch (err) {
      const refusal = refusalOf(err)
      void refreshSession() // rights may have been taken meanwhile
      if (shown.current) state.value = { at: 'asking', refusal }
      else finished.value = { title, refusal }
    }
    refresh()
  }
  const isRunning = state.value.at === 'running'
  const refusal = state.value.at === 'asking' ? state.value.refusal : undefined
  return (
    <Dialog title={title} onClose={close}>
      <div class="write-reach">{children}</div>
      {refusal && <Refused refusal={refusal} />}
      <Command label="The same by command:" text={command} />
      <div class="dialog-actions">
        {/* Beside the buttons: they do not move under the pointer when it goes. */}
        <p class="dialog-blocked" role="status">
          {!refusal && blocked && <Sign tone="attention">{formatMessage(blocked, 1024)}</Sign>}
        </p>
        <button type="button" class="button" onClick={close} aria-disabled={isRunning}>
          Cancel
        </button>
        <button
          type="button"
          class={danger ? 'button button-danger' : 'button button-primary'}
          onClick={() => void go()}
          aria-disabled={isRunning || blocked !== undefined}
          aria-busy={isRunning}
        >
          {isRunning ? `${running}…` : action}
        </button>
      </div>
    </Dialog>
  )
}

function Refused({ refusal }: { refusal: Refusal }) {
  return (
    <div class="banner banner-bad" role="alert">
      <strong>{refusal.title}</strong> {formatMessage(refusal.text.replace(/\s+/g, ' '), 2048) /* webhooks answer in several lines */}
    </div>
  )
}

/** What came of the last change. It outlives the button that made it: after an approval, nothing waits for one. */
const finished = signal<{ title: string; outcome?: Outcome; refusal?: Refusal } | undefined>(undefined)

/** Finished says what came of a change, over any page. */
export function Finished() {
  const end = useRef<HTMLButtonElement>(null)
  const of = finished.value
  useEffect(() => {
    if (of) end.current?.focus()
  }, [of])
  if (!of) return null
  const close = (): void => {
    finished.value = undefined
    // Where the button is gone that had the focus, the page has it.
    requestAnimationFrame(() => {
      if (document.activeElement === document.body) document.querySelector<HTMLElement>('main h1')?.focus()
    })
  }
  return (
    <Dialog title={of.title} onClose={close}>
      {of.refusal && <Refused refusal={of.refusal} />}
      {of.outcome && (
        <div class="write-done" role="status">
          <Sign tone="good">{of.outcome.text}</Sign>
          {of.outcome.notes?.map((note) => (
            <Sign key={note} tone="attention">
              {note}
            </Sign>
          ))}
        </div>
      )}
      {of.outcome?.command && <Command label="What follows:" text={of.outcome.command} />}
      <div class="dialog-actions">
        <button ref={end} type="button" class="button button-primary" onClick={close}>
          Close
        </button>
      </div>
    </Dialog>
  )
}

/** Reach is a list of what a change reaches: one term and what is to be said of it, each. */
export function Reach({ children }: { children: ComponentChildren }) {
  return <dl class="reach">{children}</dl>
}

export function ReachItem({ term, children }: { term: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{term}</dt>
      <dd>{children}</dd>
    </div>
  )
}
