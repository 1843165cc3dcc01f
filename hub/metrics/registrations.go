package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/pelotech/ot-fleet/api/metricset"
)

// Registrations counts the registrations of agents in pull mode. Create it with
// NewRegistrations.
type Registrations struct {
	pending     prometheus.Gauge
	tokens      prometheus.Counter
	credentials prometheus.Counter
	revoked     prometheus.Counter
}

// NewRegistrations registers the metrics.
func NewRegistrations(r prometheus.Registerer) *Registrations {
	set := metricset.Set{Registerer: r, Namespace: namespace}
	j := &Registrations{
		pending:     set.Gauge("joins_pending", "Agents that have presented a join token and wait for their key to be approved. Only the elected replica has it."),
		tokens:      set.Counter("join_tokens_issued_total", "Join tokens issued."),
		credentials: set.Counter("agent_credentials_issued_total", "Credentials issued to agents at registration; renewals are not counted."),
		revoked:     set.Counter("agent_credentials_revoked_total", "Agents whose credentials were revoked."),
	}
	return j
}

// SetPending sets the number of agents that wait for approval.
func (j *Registrations) SetPending(agents int) { j.pending.Set(float64(agents)) }

// CountTokenIssued counts a join token.
func (j *Registrations) CountTokenIssued() { j.tokens.Inc() }

// CountCredentialIssued counts a credential.
func (j *Registrations) CountCredentialIssued() { j.credentials.Inc() }

// CountRevoked counts an agent whose credentials were revoked.
func (j *Registrations) CountRevoked() { j.revoked.Inc() }
