// What the hub knows of an image of a cluster, in the words of kubectl ot why.
import type { ActiveEntry, QueuedEntry, Why } from '../api'
import { sayExpected, sayLeft } from '../estimate'
import { formatBytes, formatCount, formatDuration, formatPercent, formatRate, plainText } from '../format'
import { useAnswer } from '../query'
import { commandsOfImage } from '../imagestates'
import { href } from '../route'
import '../styles/why.css'
import { rowsOfQueue, toneOfVerdict } from '../whyqueue'
import { Command, formatMessage } from './command'
import { Meter } from './panel'
import { Sign } from './sign'
import { Empty, Shown } from './states'
import { Age, TextWithTimes } from './time'

interface Of {
  cluster: string
  namespace: string
  name: string
}

export function WhyDetail(of: Of) {
  const why = useAnswer<Why>('why', { ...of }, ['images', 'transfers', 'policy'])
  const { value, error } = why.value
  return (
    <div class="why-body">
      {!value && error?.status === 404 ? (
        <Empty title="The cluster has no such image.">
          <p>{formatMessage(error.message)}</p>
        </Empty>
      ) : (
        <Shown answer={why} lines={8}>
          {(w) => <Explained why={w} />}
        </Shown>
      )}
      <section class="why-commands" aria-label="Commands">
        {commandsOfImage(of, value?.image).map((text) => (
          <Command key={text} text={text} />
        ))}
      </section>
      <p class="why-links">
        <a href={href('clusters', of.cluster)}>Cluster {of.cluster}</a>
        {value?.image?.source && <a href={`/images?source=${encodeURIComponent(value.image.source)}`}>This image in all clusters</a>}
      </p>
    </div>
  )
}

function Explained({ why: w }: { why: Why }) {
  const said = w.explanation
  const image = w.image
  const active = w.activity?.active.find((a) => a.namespace === w.namespace && a.name === w.name)
  return (
    <>
      <div class="why-verdict">
        <Sign tone={toneOfVerdict(said?.verdict, active !== undefined)}>
          <strong>{said?.state ?? image?.phase ?? 'not known'}</strong>
        </Sign>
        <span class="muted">
          {said?.queuedAt && said.verdict !== 'Ready' && (
            <>
              for <Age at={said.queuedAt} />
              {', '}
            </>
          )}
          {w.reportedAt ? (
            <>
              reported <Age at={w.reportedAt} ago />
            </>
          ) : (
            'not reported since this replica was elected'
          )}
        </span>
      </div>
      {w.unknown && <p class="banner banner-attention">This may be out of date: {plainText(w.unknown)}.</p>}
      {active && <Progress of={active} />}
      {said?.text && (
        <p>
          <TextWithTimes text={said.text} />
        </p>
      )}
      {w.expected && <p>{sayExpected(w.expected)}</p>}
      <Queue why={w} />
      {said?.budget && said.budget.length > 0 && w.budget.budget !== undefined && (
        <Part title={`Why the budget is ${w.budget.budget}`}>
          <ol class="why-chain">
            {said.budget.map((part) => (
              <li key={part}>{formatMessage(part)}</li>
            ))}
          </ol>
          {!w.budget.acknowledged && <p class="muted">The cluster has not acknowledged its newest plan yet.</p>}
        </Part>
      )}
      {image && image.references > 0 && (
        <Part title={said?.verdict === 'Ready' ? `Machines that need it (${image.references})` : `Machines that wait for it (${image.references})`}>
          <ul class="why-holders">
            {(image.holders ?? []).map((h) => (
              <li key={h}>{plainText(h, 120)}</li>
            ))}
            {image.references > (image.holders?.length ?? 0) && <li class="muted">{formatCount(image.references - (image.holders?.length ?? 0), 'more', 'more')}</li>}
          </ul>
        </Part>
      )}
      {said?.sooner && (
        <Part title="To have it sooner">
          <p>
            Concurrency {said.sooner.concurrency} would bring it ~{formatDuration((said.sooner.seconds ?? 0) * 1000)} sooner.
          </p>
          <Command text={said.sooner.command} />
        </Part>
      )}
      {image && <Facts why={w} />}
    </>
  )
}

function Part({ title, children }: { title: string; children: preact.ComponentChildren }) {
  return (
    <section class="why-part">
      <h3>{title}</h3>
      {children}
    </section>
  )
}

function Progress({ of: a }: { of: ActiveEntry }) {
  const total = a.bytesTotal ?? 0
  const done = a.bytesDone ?? 0
  return (
    <div class="why-progress">
      {total > 0 ? (
        <>
          <Meter value={done} max={total} label={`Downloaded: ${formatPercent(done / total)}`} />
          <strong>{formatPercent(done / total)}</strong>
          <span>
            {formatBytes(done)} of {formatBytes(total)}
          </span>
        </>
      ) : (
        <span>
          {formatBytes(done)}
          {a.atMostBytes ? ` of at most ${formatBytes(a.atMostBytes)}` : ', of an unknown size'}
        </span>
      )}
      <span>{a.bytesPerSecond ? formatRate(a.bytesPerSecond) : 'rate unknown'}</span>
      {a.attempt !== undefined && <span>attempt {a.maxAttempts ? `${a.attempt} of ${a.maxAttempts}` : a.attempt}</span>}
    </div>
  )
}

function Queue({ why: w }: { why: Why }) {
  const { rows, behind } = rowsOfQueue(w)
  if (rows.length === 0) return null
  return (
    <Part title="What runs, and what goes first">
      <table class="why-queue">
        <thead>
          <tr>
            <th scope="col" class="right">
              <span class="visually-hidden">Place</span>
            </th>
            <th scope="col">Image</th>
            <th scope="col" class="right">
              Done
            </th>
            <th scope="col" class="right">
              Rate
            </th>
            <th scope="col" class="right">
              Left
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((r) => (
            <tr key={`${r.entry.namespace}/${r.entry.name}`} class={r.isThis ? 'this' : undefined} aria-current={r.isThis ? 'true' : undefined}>
              <td class="right">{r.place ?? <Sign tone="moving" bare>runs</Sign>}</td>
              <td>
                {plainText(`${r.entry.namespace}/${r.entry.name}`, 120)}
                {r.note && (
                  <div class="muted">
                    <TextWithTimes text={r.note} />
                  </div>
                )}
              </td>
              <td class="right nowrap">{doneOf(r.entry)}</td>
              <td class="right nowrap">{'bytesPerSecond' in r.entry && r.entry.bytesPerSecond ? formatRate(r.entry.bytesPerSecond) : ''}</td>
              <td class="right nowrap">{sayLeft(r.entry.expected)}</td>
            </tr>
          ))}
        </tbody>
      </table>
      {behind > 0 && <p class="muted">{formatCount(behind, 'more waits', 'more wait')}</p>}
    </Part>
  )
}

function doneOf(entry: ActiveEntry | QueuedEntry): string {
  const atMost = entry.atMostBytes ? `≤ ${formatBytes(entry.atMostBytes)}` : '?'
  if ('startedAt' in entry) return entry.bytesTotal ? `${formatPercent((entry.bytesDone ?? 0) / entry.bytesTotal)} of ${formatBytes(entry.bytesTotal)}` : atMost
  return 'bytes' in entry && entry.bytes ? formatBytes(entry.bytes) : atMost
}

function Facts({ why: { image, namespace } }: { why: Why }) {
  if (!image) return null
  return (
    <dl class="why-facts">
      <dt>Namespace</dt>
      <dd>{plainText(namespace)}</dd>
      {image.source && (
        <>
          <dt>Source</dt>
          <dd>{plainText(image.source)}</dd>
        </>
      )}
      <dt>Storage</dt>
      <dd>{image.bytes === undefined ? 'unknown' : formatBytes(image.bytes)}</dd>
      {image.attempts !== undefined && image.attempts > 0 && (
        <>
          <dt>Attempts</dt>
          <dd>{image.attempts}</dd>
        </>
      )}
      {image.syncedAt && (
        <>
          <dt>Imported</dt>
          <dd>
            <Age at={image.syncedAt} ago />
          </dd>
        </>
      )}
      {image.plan && (
        <>
          <dt>Plan</dt>
          <dd>{formatMessage([image.plan.state, image.plan.reason, image.plan.message].filter(Boolean).join(', '))}</dd>
        </>
      )}
    </dl>
  )
}
