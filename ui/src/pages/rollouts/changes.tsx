import type { RolloutDetail } from '../../api'
import { plainText } from '../../format'

/** ChangeList is how the version differs from the one before. */
export function ChangeList({ detail: { changes: c } }: { detail: Pick<RolloutDetail, 'changes'> }) {
  if (!c) return <p class="muted">It is the first version.</p>
  if (c.notRecorded) return <p class="muted">What has changed is not recorded: {plainText(c.notRecorded, 300)}.</p>
  if (!c.fields?.length) return <p class="muted">Nothing but the version.</p>
  return (
    <dl class="changes">
      {c.fields.map((f) => (
        <div key={f.field}>
          <dt>{f.field}</dt>
          <dd>
            <del>
              <span class="visually-hidden">from </span>
              {plainText(f.from || '(none)', 240)}
            </del>
            <ins>
              <span class="visually-hidden">to </span>
              {plainText(f.to || '(none)', 240)}
            </ins>
          </dd>
        </div>
      ))}
    </dl>
  )
}
