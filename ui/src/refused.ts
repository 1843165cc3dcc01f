// Why a request was refused: which right is lacking, whether the hub is older than the page, whether a matrix is too large.
import { ChooseClustersMessage } from './api'
import type { RequestError } from './client'

/** Right is a verb on a resource. */
export interface Right {
  verb: string
  resource: string
}

const forbidden = /cannot (\w+) resource "([a-z0-9./-]+)"(?: in API group "([^"]*)")?/
const admission = /(?:needs?|requires?|without) (?:the )?(?:right to |verb )"?(\w+)"?(?: on)? ([a-z]+)/

/** Returns the right that is lacking, by the path of the request and the words of the refusal; nothing where they do not say. */
export function lackingRight(path: string, message: string): Right | undefined {
  const said = forbidden.exec(message)
  if (said) return { verb: said[1]!, resource: said[2]! }
  if (path.startsWith('/fleet/')) return { verb: 'get', resource: 'fleet' }
  const named = admission.exec(message)
  if (named) return { verb: named[1]!, resource: named[2]! }
  return undefined
}

/** Returns a right in words: the read API has a path, and is no resource. */
export function nameRight(right: Right): string {
  return right.resource === 'fleet' ? `${right.verb} /fleet/v1/*, the read API of the hub` : `${right.verb} ${right.resource}`
}

/** Reports whether a refusal means that the hub is older than the page: it has no such path, or takes no such parameter. */
export function isOlderHub(status: number, path: string, message: string): boolean {
  if (!path.startsWith('/fleet/')) return false
  if (status === 404) return message.includes('this API has no such path')
  return status === 400 && / takes no parameter /.test(message)
}

/** Reports whether a matrix is refused as too large: a part of its clusters may have one. */
export function isMatrixTooLarge(error: Pick<RequestError, 'status' | 'message'> | undefined): boolean {
  return error?.status === 400 && error.message.includes(ChooseClustersMessage)
}
