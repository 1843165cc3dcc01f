import { Page } from '../components/panel'
import { Empty } from '../components/states'

export default function NotFound() {
  return (
    <Page title="Not found">
      <Empty title="There is no page at this address.">
        <p>
          <a href="/">Go to the fleet</a>
        </p>
      </Empty>
    </Page>
  )
}
