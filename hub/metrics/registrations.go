package metrics

import "github.com/prometheus/client_golang/prometheus"

// Registrations counts what happens to agents that dial in. Create it with NewRegistrations.
type Registrations struct {
	pending     prometheus.Gauge
	tokens      prometheus.Counter
	credentials prometheus.Counter
	revoked     prometheus.Counter
}

// NewRegistrations registers the metrics.
func NewRegistrations(r prometheus.Registerer) *Registrations {
	j := &Registrations{
		pending: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: "joins_pending",
			Help: "Agents that have presented a join token and wait for their key to be accepted. Only the replica that plans knows."}),
		tokens: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "join_tokens_issued_total",
			Help: "Join tokens that were made."}),
		credentials: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "agent_credentials_issued_total",
			Help: "Credentials that were issued to agents that join; what they renew themselves is not counted."}),
		revoked: prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: "agent_credentials_revoked_total",
			Help: "Agents whose credentials were revoked."}),
	}
	r.MustRegister(j.pending, j.tokens, j.credentials, j.revoked)
	return j
}

// SetPending tells how many agents wait.
func (j *Registrations) SetPending(agents int) { j.pending.Set(float64(agents)) }

// CountTokenIssued counts a join token.
func (j *Registrations) CountTokenIssued() { j.tokens.Inc() }

// CountCredentialIssued counts a credential.
func (j *Registrations) CountCredentialIssued() { j.credentials.Inc() }

// CountRevoked counts an agent that was shut out.
func (j *Registrations) CountRevoked() { j.revoked.Inc() }
