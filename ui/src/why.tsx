// Why an image of a cluster is where it is: opened over any page by the parameter why of the address.
import { param } from './route'

export { whyOf } from './whyaddress'


export function WhyPanel() {
  if (param('why') === '') return null
  return null
}
