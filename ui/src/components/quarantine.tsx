// A cluster that is cut off from the fleet, and its way back.
import { useSignal } from '@preact/signals'
import { useId } from 'preact/hooks'
import type { MemberDetail, MemberQuarantineDetail, QuarantineDecision } from '../api'
import { getJSON, mergePatch, RequestError, sendJSON, withParams } from '../client'
import { isSameQuarantine, refuseReason } from '../clusters'
import { plainText } from '../format'
import type { Outcome } from '../outcome'
import { useAnswer } from '../query'
import { param } from '../route'
import { Command, formatMessage } from './command'
import { shellWord } from '../shellword'
import { Panel } from './panel'
import { Shown } from './states'
import { Age } from './time'
import { Write } from './write'

/** The quarantine of a cluster: what it is in, and the button to begin or end it. */
export function QuarantinePanel({ detail }: { detail: MemberDetail }) {
  const member = detail.member
  const inQuarantine = detail.quarantine !== undefined
  const isAsked = inQuarantine || ['quarantine', 'release'].includes(param('do'))
  const answer = useAnswer<MemberQuarantineDetail>(isAsked ? 'members/quarantine' : undefined, { member }, ['members'], 5000)
  const known = answer.value.value
  return (
    <Panel title="Quarantine" tone={inQuarantine ? 'attention' : undefined}>
      {inQuarantine ? (
        <>
          <p>
            <strong>{plainText(detail.quarantine!, 300)}</strong>
          </p>
          <p class="muted">
            {known?.since && (
              <>
                In quarantine for <Age at={known.since} />
              </>
            )}
            {known?.setBy && (
              <>
                {known.since ? ', ' : ''}written by {plainText(known.setBy, 80)}
                {known.setAt && (
                  <>
                    {' '}
                    <Age at={known.setAt} ago />
                  </>
                )}
              </>
            )}
          </p>
          <div>
            <Release member={member} known={known} answer={answer} />
          </div>
        </>
      ) : (
        <>
          <p class="muted">It takes part in the fleet. A quarantine cuts it off at once, where you do not trust what it reports, or its credential.</p>
          <div>
            <Begin member={member} known={known} answer={answer} />
          </div>
        </>
      )}
    </Panel>
  )
}

interface ChangeProps {
  member: string
  known?: MemberQuarantineDetail
  answer: ReturnType<typeof useAnswer<MemberQuarantineDetail>>
}

function Begin({ member, known, answer }: ChangeProps) {
  const reason = useSignal('')
  const id = useId()
  const blocked = !known ? 'What follows is not known yet.' : (known.begin.refused ?? (reason.value === '' ? undefined : refuseReason(reason.value)))
  return (
    <Write
      name="quarantine"
      verb="update"
      resource="memberclusters"
      label="Quarantine…"
      title={`Cut ${member} off from the fleet`}
      action="Quarantine"
      running="Writing"
      danger
      command={`kubectl ot quarantine ${shellWord(member)} --reason ${shellWord(reason.value.trim() || 'TEXT')}`}
      blocked={blocked}
      run={() => {
        const refused = refuseReason(reason.value)
        if (refused) throw new Error(refused)
        return change(member, known!, { reason: reason.value.trim() }, known!.begin, `${member} is in quarantine.`)
      }}
    >
      <label class="reason" for={id}>
        Why, for whoever finds it cut off
        <input id={id} type="text" required maxLength={256} value={reason.value} onInput={(event) => (reason.value = event.currentTarget.value)} />
      </label>
      <Shown answer={answer}>{(q) => <Effects decision={q.begin} />}</Shown>
    </Write>
  )
}

function Release({ member, known, answer }: ChangeProps) {
  return (
    <Write
      name="release"
      verb="update"
      resource="memberclusters"
      label="End the quarantine…"
      title={`Let ${member} take part again`}
      action="End the quarantine"
      running="Writing"
      command={`kubectl ot quarantine ${shellWord(member)} --end`}
      blocked={known ? known.end.refused : 'What follows is not known yet.'}
      run={() => change(member, known!, null, known!.end, `The quarantine of ${member} has ended.`)}
    >
      <Shown answer={answer}>{(q) => <Effects decision={q.end} />}</Shown>
    </Write>
  )
}

function Effects({ decision }: { decision: QuarantineDecision }) {
  return (
    <>
      {decision.effects.length > 0 && (
        <>
          <h3>What follows</h3>
          <ul class="effects">
            {decision.effects.map((effect) => (
              <li key={effect}>{formatMessage(effect)}</li>
            ))}
          </ul>
        </>
      )}
      {decision.byHand && decision.byHand.length > 0 && (
        <>
          <h3>By hand, where the cluster is reached: to revoke the hub's tokens</h3>
          {decision.byHand.map((c) => (
            <Command key={c} text={c} />
          ))}
        </>
      )}
    </>
  )
}

const attempts = 4

/** The hub writes to a MemberCluster often: what was shown is compared with what is stored, and written on that. */
async function change(member: string, shown: MemberQuarantineDetail, quarantine: { reason: string } | null, decision: QuarantineDecision, text: string): Promise<Outcome> {
  for (let attempt = 1; ; attempt++) {
    const stored = await getJSON<MemberQuarantineDetail>(withParams('/fleet/v1/members/quarantine', { member }))
    if (!isSameQuarantine(shown, stored)) throw new RequestError(409, 'somebody else has changed the quarantine of this cluster since it was shown. Look at it again')
    try {
      await sendJSON('PATCH', `/k8s/apis/pelotech.ot/v1alpha1/memberclusters/${encodeURIComponent(member)}`, { metadata: { resourceVersion: stored.resourceVersion }, spec: { quarantine } }, mergePatch)
      return { text, notes: decision.effects, command: `kubectl ot why cluster ${shellWord(member)}` }
    } catch (err) {
      if (!(err instanceof RequestError) || err.status !== 409 || attempt === attempts) throw err
    }
  }
}
