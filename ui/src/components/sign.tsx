// A state is a sign, a colour and a word: none stands alone.
import type { ComponentChildren } from 'preact'

export type Tone = 'good' | 'moving' | 'waiting' | 'attention' | 'bad' | 'unknown' | 'quiet'

const glyphs: Record<Tone, string> = { good: '✓', moving: '●', waiting: '◌', attention: '!', bad: '✗', unknown: '?', quiet: '·' }

/** Sign shows a state. With bare, its word is for readers of the screen alone. */
export function Sign({ tone, children, bare }: { tone: Tone; children: ComponentChildren; bare?: boolean }) {
  return (
    <span class={`sign sign-${tone}`}>
      <span class="sign-glyph" aria-hidden="true">
        {glyphs[tone]}
      </span>
      <span class={bare ? 'visually-hidden' : undefined}>{children}</span>
    </span>
  )
}

export function glyphOf(tone: Tone): string {
  return glyphs[tone]
}

/** The tones of phases of images, and of states and conditions that the hub names. */
const tones: Record<string, Tone> = {
  Ready: 'good', Done: 'good', Succeeded: 'good', Complete: 'good', Completed: 'good', True: 'good',
  Syncing: 'moving', Importing: 'moving', Progressing: 'moving', Running: 'moving', Pruning: 'moving', Deleting: 'moving',
  Queued: 'waiting', Pending: 'waiting', Waiting: 'waiting', Planned: 'waiting', NotReady: 'waiting', new: 'waiting',
  AwaitingApproval: 'attention', Paused: 'attention', Stalled: 'attention', Blocked: 'attention', Quarantined: 'attention',
  Failed: 'bad', Failing: 'bad', Refused: 'bad', False: 'bad',
  Silent: 'unknown', NeverReported: 'unknown', Unknown: 'unknown',
}

/** Returns the tone of a state by its name. What is not known is shown as unknown. */
export function toneOf(state: string | undefined): Tone {
  return (state !== undefined && tones[state]) || 'unknown'
}
