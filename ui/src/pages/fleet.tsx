// The fleet at a glance: what needs a person, the key numbers, and clusters × images.
import type { Summary } from '../api'
import { tasksOf } from '../attention'
import { Command, CopyCommand, formatMessage } from '../components/command'
import { FirstRun } from '../components/firstrun'
import { readyImages } from '../firststeps'
import { MatrixPanel } from '../components/matrixpanel'
import { Figure, Figures, Page, Panel } from '../components/panel'
import { Sign, type Tone } from '../components/sign'
import { FleetSlots } from '../components/slots'
import { Shown } from '../components/states'
import { Sparkline } from '../components/chart'
import { Age } from '../components/time'
import { formatBytes, formatCount, formatNumber, formatRate, plainText } from '../format'
import { useAnswer } from '../query'
import { href, hrefWith, param } from '../route'
import '../styles/fleet.css'

export default function FleetPage() {
  const summary = useAnswer<Summary>('summary', {}, ['members', 'images', 'rollouts', 'prunes', 'transfers', 'policy'], 3000)
  return (
    <Page title="Fleet" aside={<Command text="kubectl ot status" />}>
      <Shown answer={summary} lines={6}>
        {(s) => (
          <div class="fleet">
            {readyImages(s) === 0 && <FirstRun summary={s} />}
            {s.members.total > 0 && (
              <>
                <Tasks summary={s} />
                <KeyFigures summary={s} />
              </>
            )}
          </div>
        )}
      </Shown>
      {(summary.value.value?.members.total ?? 0) > 0 && <MatrixPanel />}
    </Page>
  )
}

const fewTasks = 5

function Tasks({ summary }: { summary: Summary }) {
  const { tasks, unnamed } = tasksOf(summary)
  if (tasks.length === 0) {
    return (
      <p class="all-well">
        <Sign tone="good">Nothing needs a person.</Sign>
      </p>
    )
  }
  const all = param('tasks') === 'all'
  const shown = all ? tasks : tasks.slice(0, fewTasks)
  const hidden = tasks.length - shown.length
  return (
    <Panel
      tone="attention"
      title={`Needs a person (${formatNumber(tasks.length + unnamed)})`}
      aside={
        tasks.length > fewTasks && (
          <a href={hrefWith({ tasks: all ? undefined : 'all' })}>{all ? 'Show fewer' : `Show ${hidden} more`}</a>
        )
      }
    >
      <ul class="tasks">
        {shown.map((t) => (
          <li key={t.key}>
            <Sign tone={t.tone} bare>
              {t.tone === 'bad' ? 'Failed' : t.tone === 'unknown' ? 'Unknown' : 'Waits'}
            </Sign>
            <p tabIndex={0} title={formatMessage(t.text, 240)}>
              <strong>{plainText(t.subject, 80)}</strong>{' '}
              {t.since && (
                <span class="muted">
                  (<Age at={t.since} />){' '}
                </span>
              )}
              {formatMessage(t.text, 240)}
            </p>
            <span class="task-actions">
              <a class="button" href={t.href}>
                {t.link}
                <span class="visually-hidden">: {t.subject}</span>
              </a>
              <CopyCommand text={t.command} />
            </span>
          </li>
        ))}
      </ul>
      {unnamed > 0 && (all || hidden === 0) && (
        <p class="muted">
          {formatCount(unnamed, 'more is', 'more are')} not listed here: <a href="/?show=failing">what is failing</a>, <a href="/?show=unknown">what is unknown</a>.
        </p>
      )}
    </Panel>
  )
}

const memberSigns: { key: 'ready' | 'notReady' | 'failing' | 'stalled' | 'silent' | 'neverReported' | 'quarantined'; tone: Tone; word: string }[] = [
  { key: 'stalled', tone: 'attention', word: 'stalled' },
  { key: 'failing', tone: 'bad', word: 'failing' },
  { key: 'silent', tone: 'unknown', word: 'silent' },
  { key: 'neverReported', tone: 'unknown', word: 'never reported' },
  { key: 'quarantined', tone: 'attention', word: 'in quarantine' },
  { key: 'notReady', tone: 'moving', word: 'not ready' },
  { key: 'ready', tone: 'good', word: 'ready' },
]

function KeyFigures({ summary: s }: { summary: Summary }) {
  const { fleet, queued, queuedMembers, oldestQueuedAt } = s.transfers
  return (
    <Figures>
      <Figure
        label="Clusters"
        note={
          <span class="figure-signs">
            {memberSigns
              .filter((m) => s.members[m.key] > 0)
              .map((m) => (
                <Sign key={m.key} tone={m.tone}>
                  {formatNumber(s.members[m.key])} {m.word}
                </Sign>
              ))}
          </span>
        }
      >
        {formatNumber(s.members.total)}
      </Figure>
      <FleetSlots budget={fleet} />
      <Figure label="Throughput" note={fleet.trend && <Sparkline values={fleet.trend} label="Bytes per second over the last hour" />}>
        {fleet.bytesPerSecond === undefined ? <span class="unknown-value">unknown</span> : formatRate(fleet.bytesPerSecond)}
      </Figure>
      <Figure
        label="Queued"
        note={
          queued > 0 && (
            <span>
              in {formatCount(queuedMembers, 'cluster')}
              {oldestQueuedAt && (
                <>
                  , the oldest for <Age at={oldestQueuedAt} />
                </>
              )}
            </span>
          )
        }
      >
        {formatNumber(queued)}
      </Figure>
      <Figure
        label="Can go"
        note={
          s.canGo && (
            <span>
              {formatCount(s.canGo.candidates.count, 'image')},{' '}
              <a href={href('cleanup', s.canGo.report)}>{plainText(s.canGo.report, 40)}</a>
              {s.canGo.unknownClusters > 0 && <>, {formatCount(s.canGo.unknownClusters, 'cluster')} unknown</>}
            </span>
          )
        }
      >
        {s.canGo ? formatBytes(s.canGo.candidates.bytes) : <span class="unknown-value">no report yet</span>}
      </Figure>
    </Figures>
  )
}
