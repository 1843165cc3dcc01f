package metrics

import "github.com/prometheus/client_golang/prometheus"

// Joins counts what happens to agents that dial in. Create it with NewJoins.
type Joins struct {
	pending     prometheus.Gauge
	tokens      prometheus.Counter
	credentials prometheus.Counter
	revoked     prometheus.Counter
}

// NewJoins registers the metrics.
func NewJoins(r prometheus.Registerer) *Joins {
	j := &Joins{
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

// Pending tells how many agents wait.
func (j *Joins) Pending(agents int) { j.pending.Set(float64(agents)) }

// TokenIssued counts a join token.
func (j *Joins) TokenIssued() { j.tokens.Inc() }

// CredentialIssued counts a credential.
func (j *Joins) CredentialIssued() { j.credentials.Inc() }

// Revoked counts an agent that was shut out.
func (j *Joins) Revoked() { j.revoked.Inc() }
