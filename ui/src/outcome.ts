// What came of a change that a person asked for.
import { RequestError } from './client'

/** Outcome is a change that was made. */
export interface Outcome {
  /** What was done, in one sentence. */
  text: string
  /** What else a person has to know. */
  notes?: string[]
  /** The command that shows what follows. */
  command?: string
}

/** Refusal is a change that was not made, or of which that is unknown. */
export interface Refusal {
  title: string
  /** The words of the API server, or of the page. */
  text: string
}

/** Returns why a change was not made. After a connection that broke, that is unknown: it is then said to be. */
export function refusalOf(error: unknown): Refusal {
  if (!(error instanceof RequestError)) return { title: 'Not done:', text: error instanceof Error ? error.message : String(error) }
  const { status, message } = error
  if (status === 0 || (status >= 500 && status !== 503)) return { title: 'Unknown whether it was done:', text: `${message}. See what the page shows before you try again.` }
  if (status === 401 || status === 403) return { title: 'Refused:', text: message }
  if (status === 409) return { title: 'Changed meanwhile:', text: message }
  return { title: 'Not done:', text: message }
}
