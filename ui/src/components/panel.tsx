import type { ComponentChildren } from 'preact'
import { useId } from 'preact/hooks'

/** Page is the frame of a page: its heading, what stands beside it, and the command that says the same. */
export function Page({ title, aside, children }: { title: ComponentChildren; aside?: ComponentChildren; children: ComponentChildren }) {
  return (
    <>
      <div class="page-head">
        <h1 tabIndex={-1}>{title}</h1>
        {aside && <div class="page-aside">{aside}</div>}
      </div>
      {children}
    </>
  )
}

/** Panel is a section with a heading. */
export function Panel({ title, aside, children, tone }: { title: ComponentChildren; aside?: ComponentChildren; children: ComponentChildren; tone?: 'attention' }) {
  const id = useId()
  return (
    <section class={tone ? `panel panel-${tone}` : 'panel'} aria-labelledby={id}>
      <div class="panel-head">
        <h2 id={id}>{title}</h2>
        {aside && <div class="panel-aside">{aside}</div>}
      </div>
      {children}
    </section>
  )
}

/** Figures are the key numbers of a page. An unknown number is said to be unknown, and is never zero. */
export function Figures({ children }: { children: ComponentChildren }) {
  return <dl class="figures">{children}</dl>
}

export function Figure({ label, children, note }: { label: string; children: ComponentChildren; note?: ComponentChildren }) {
  return (
    <div class="figure">
      <dt>{label}</dt>
      <dd>
        <span class="figure-value">{children}</span>
        {note && <span class="figure-note">{note}</span>}
      </dd>
    </div>
  )
}

/** Meter shows a part of a whole, with the numbers beside it. */
export function Meter({ value, held, max, label }: { value: number; held?: number; max: number; label: string }) {
  const share = (n: number): string => `${max > 0 ? Math.min(100, (100 * n) / max) : 0}%`
  return (
    <span class="meter" role="meter" aria-valuemin={0} aria-valuemax={max} aria-valuenow={Math.min(value, max)} aria-label={label}>
      {held !== undefined && <span class="meter-held" style={{ width: share(held) }} />}
      <span class="meter-value" style={{ width: share(value) }} />
    </span>
  )
}
