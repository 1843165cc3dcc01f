package credential

import (
	"encoding/base64"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/pelotech/ot-fleet/api/apitest"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

var (
	start   = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	options = Options{RetryRefused: time.Minute, RetryFailed: 10 * time.Second}
)

const life = 7 * 24 * time.Hour

// bootstrap is a token with which a member joins, legacy one without expiry.
func bootstrap() *Given {
	return &Given{Kind: "a token", Namespace: "ot-agent", Account: Account, Expires: start.Add(24 * time.Hour)}
}

func legacy() *Given {
	return &Given{Kind: "a token", Namespace: "ot-agent", Account: Account, LegacySecret: "ot-hub-token"}
}

func snapshotWith(given *Given, change func(*Snapshot)) Snapshot {
	s := Snapshot{Now: start, Member: "m", Secret: "ot-hub/m", AgentNamespace: "ot-agent", Given: given, SecretExists: given != nil, HasKubeconfig: given != nil}
	if change != nil {
		change(&s)
	}
	return s
}

func issuedFor(age time.Duration) func(*Snapshot) {
	return func(s *Snapshot) {
		s.Issued, s.Stored = &Issued{At: start.Add(-age), Expires: start.Add(life - age)}, true
	}
}

func both(changes ...func(*Snapshot)) func(*Snapshot) {
	return func(s *Snapshot) {
		for _, change := range changes {
			change(s)
		}
	}
}

func refused(s *Snapshot)      { s.Refused = true }
func unreachable(s *Snapshot)  { s.Unreachable = true }
func givenRefused(s *Snapshot) { s.GivenRefused = true }
func failedJustNow(s *Snapshot) {
	s.Failure = &Failure{At: start, Count: 3, Message: "the policy refuses it"}
}
func failedEarlier(s *Snapshot) {
	s.Failure = &Failure{At: start.Add(-time.Hour), Count: 30, Message: "the policy refuses it"}
}

func TestDecide(t *testing.T) {
	none, given, either := []Source(nil), []Source{SourceGiven}, []Source{SourceIssued, SourceGiven}
	expired := bootstrap()
	expired.Expires = start
	stranger := &Given{Kind: "a client certificate or a password"}
	elsewhere := bootstrap()
	elsewhere.Namespace = "elsewhere"
	const third = life / 3
	for name, tt := range map[string]struct {
		snapshot    Snapshot
		wantIssue   []Source
		wantDrop    bool
		wantProbe   bool
		wantWait    time.Duration
		wantStatus  metav1.ConditionStatus
		wantReason  string
		wantMessage string
	}{
		"a new member":             {snapshotWith(bootstrap(), nil), given, false, false, 0, "Unknown", v1alpha1.ReasonRotationPending, "expires at 2026-11-02T12:00:00Z"},
		"does not answer":          {snapshotWith(bootstrap(), unreachable), none, false, false, 0, "Unknown", v1alpha1.ReasonRotationPending, "as soon as it reaches"},
		"its first failed":         {snapshotWith(bootstrap(), failedJustNow), none, false, false, 40 * time.Second, "False", v1alpha1.ReasonRotationFailed, "the policy refuses it"},
		"its first failed earlier": {snapshotWith(bootstrap(), failedEarlier), given, false, false, 0, "False", v1alpha1.ReasonRotationFailed, "retries"},
		"came too late":            {snapshotWith(expired, nil), none, false, false, 0, "False", v1alpha1.ReasonCredentialRefused, "kubectl ot join push m"},
		"another kubeconfig":       {snapshotWith(bootstrap(), func(s *Snapshot) { s.Stored, s.Unconfirmed = true, true }), none, false, false, ProbeInterval, "Unknown", v1alpha1.ReasonRotationPending, "keeps its own token"},
		"another kubeconfig, and for how long": {
			snapshotWith(bootstrap(), func(s *Snapshot) { s.Stored, s.Unconfirmed = true, true }), none, false, false, ProbeInterval, "Unknown", v1alpha1.ReasonRotationPending,
			"the one in the Secret, which expires at 2026-11-02T12:00:00Z; before it expires, accept the cluster as IdentityConfirmed says, or put the former kubeconfig back",
		},
		"another kubeconfig, and it is refused": {
			snapshotWith(bootstrap(), both(givenRefused, func(s *Snapshot) { s.Stored, s.Unconfirmed = true, true })), none, false, false, ProbeInterval, "False", v1alpha1.ReasonCredentialRefused,
			"has another kubeconfig than before, whose token expires at 2026-11-02T12:00:00Z, or was revoked: put the former kubeconfig back, of which the hub still has a valid token, or run kubectl ot join push m",
		},
		"another kubeconfig, and it expired": {
			snapshotWith(expired, func(s *Snapshot) { s.Stored, s.Unconfirmed = true, true }), none, false, false, ProbeInterval, "False", v1alpha1.ReasonCredentialRefused, "put the former kubeconfig back",
		},
		"was revoked before":         {snapshotWith(bootstrap(), givenRefused), given, false, false, 0, "False", v1alpha1.ReasonCredentialRefused, "kubectl ot join push m"},
		"rotated":                    {snapshotWith(bootstrap(), issuedFor(time.Hour)), none, false, false, third - time.Hour, "True", v1alpha1.ReasonRotated, "expires at 2026-11-08T11:00:00Z"},
		"rotated, given expired":     {snapshotWith(expired, issuedFor(time.Hour)), none, false, false, third - time.Hour, "True", v1alpha1.ReasonRotated, "renews it before"},
		"due":                        {snapshotWith(bootstrap(), issuedFor(third)), either, false, false, 0, "True", v1alpha1.ReasonRotated, ""},
		"due, given expired":         {snapshotWith(expired, issuedFor(third)), []Source{SourceIssued}, false, false, 0, "True", v1alpha1.ReasonRotated, ""},
		"due, does not answer":       {snapshotWith(expired, both(issuedFor(third), unreachable)), none, false, false, 0, "True", v1alpha1.ReasonRotated, ""},
		"due, and failed":            {snapshotWith(expired, both(issuedFor(third), failedJustNow)), none, false, false, 40 * time.Second, "False", v1alpha1.ReasonRotationFailed, "the one in use expires at"},
		"refused just now":           {snapshotWith(bootstrap(), both(issuedFor(time.Second), refused)), none, false, false, 59 * time.Second, "True", v1alpha1.ReasonRotated, ""},
		"refused":                    {snapshotWith(bootstrap(), both(issuedFor(time.Hour), refused)), given, false, false, 0, "True", v1alpha1.ReasonRotated, ""},
		"issued by a clock ahead":    {snapshotWith(bootstrap(), issuedFor(-5*24*time.Hour)), either, false, false, 0, "True", v1alpha1.ReasonRotated, ""},
		"refused, by a clock ahead":  {snapshotWith(bootstrap(), both(issuedFor(-5*24*time.Hour), refused)), given, false, false, 0, "True", v1alpha1.ReasonRotated, ""},
		"revoked":                    {snapshotWith(bootstrap(), both(issuedFor(time.Hour), refused, givenRefused)), given, false, false, 0, "False", v1alpha1.ReasonCredentialRefused, "it was revoked there"},
		"revoked, given expired":     {snapshotWith(expired, both(issuedFor(time.Hour), refused)), none, false, false, third - time.Hour, "False", v1alpha1.ReasonCredentialRefused, "kubectl ot join push m"},
		"legacy, new":                {snapshotWith(legacy(), nil), given, false, false, 0, "Unknown", v1alpha1.ReasonRotationPending, "has no known expiry"},
		"legacy, rotated":            {snapshotWith(legacy(), issuedFor(time.Hour)), none, false, true, ProbeInterval, "False", v1alpha1.ReasonLegacyToken, "kubectl --namespace ot-agent delete secret ot-hub-token"},
		"legacy, rotated, deleted":   {snapshotWith(legacy(), both(issuedFor(time.Hour), givenRefused)), none, false, true, third - time.Hour, "True", v1alpha1.ReasonRotated, ""},
		"legacy, refused":            {snapshotWith(legacy(), both(issuedFor(time.Hour), refused)), given, false, false, 0, "False", v1alpha1.ReasonLegacyToken, ""},
		"an administrator's":         {snapshotWith(stranger, nil), none, false, false, 0, "False", v1alpha1.ReasonNotRotated, "has a client certificate"},
		"an administrator's instead": {snapshotWith(stranger, func(s *Snapshot) { s.Stored = true }), none, false, false, 0, "False", v1alpha1.ReasonNotRotated, ""},
		"another account's":          {snapshotWith(elsewhere, nil), none, false, false, 0, "False", v1alpha1.ReasonNotRotated, "tokens of ServiceAccount ot-agent/ot-hub only"},
		"its content removed":        {snapshotWith(nil, func(s *Snapshot) { s.SecretExists, s.Stored = true, true }), none, true, false, 0, "False", v1alpha1.ReasonNotRotated, "dropped"},
		"a typing error in it":       {snapshotWith(nil, func(s *Snapshot) { s.SecretExists, s.HasKubeconfig, s.Stored = true, true, true }), none, false, false, 0, "False", v1alpha1.ReasonNotRotated, "correct it"},
		"its Secret removed":         {snapshotWith(nil, func(s *Snapshot) { s.Stored = true }), none, false, false, 0, "Unknown", v1alpha1.ReasonNotRotated, "does not exist"},
	} {
		t.Run(name, func(t *testing.T) {
			got := Decide(tt.snapshot, options)
			assert.Equal(t, tt.wantIssue, got.IssueWith)
			assert.Equal(t, tt.wantDrop, got.Drop)
			assert.Equal(t, tt.wantProbe, got.ProbeGiven)
			assert.Equal(t, tt.wantWait, got.Wait)
			apitest.AssertCondition(t, got.Condition, tt.wantStatus, tt.wantReason, tt.wantMessage)
		})
	}
}

// TestRotationOutlivesOutages plays a member whose hub is down for any time up to four
// days at any moment: its token never expires.
func TestRotationOutlivesOutages(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		given := rapid.SampledFrom([]*Given{bootstrap(), legacy()}).Draw(t, "given")
		s := snapshotWith(given, nil)
		for range 20 {
			if s.Issued != nil {
				require.True(t, s.Now.Before(s.Issued.Expires), "the token expired")
			}
			d := Decide(s, options)
			require.False(t, d.Drop)
			switch {
			case len(d.IssueWith) == 0:
				require.Positive(t, d.Wait, "nothing happens again")
				s.Now = s.Now.Add(d.Wait)
				if s.Failure == nil && d.Wait > ProbeInterval {
					s.Now = s.Now.Add(time.Duration(rapid.Int64Range(0, int64(4*24*time.Hour)).Draw(t, "outage")))
				}
				s.GivenRefused = true // the legacy Secret is deleted, or the token has expired
			case rapid.Bool().Draw(t, "fails") && (s.Failure == nil || s.Failure.Count < 9):
				count := 1
				if s.Failure != nil {
					count += s.Failure.Count
				}
				s.Failure = &Failure{At: s.Now, Count: count}
			default:
				s.Failure, s.Stored = nil, true
				s.Issued = &Issued{At: s.Now, Expires: s.Now.Add(life)}
			}
		}
	})
}

// TestDropOnlyWithoutGiven: a token is deleted only if the kubeconfig that it replaces is gone.
func TestDropOnlyWithoutGiven(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := snapshotWith(rapid.SampledFrom([]*Given{bootstrap(), legacy(), {Kind: "a typing error"}, nil}).Draw(t, "given"), both(
			func(s *Snapshot) {
				if rapid.Bool().Draw(t, "issued") {
					issuedFor(time.Duration(rapid.Int64Range(0, int64(2*life)).Draw(t, "age")))(s)
				}
			},
			func(s *Snapshot) {
				s.Refused, s.Unreachable = rapid.Bool().Draw(t, "refused"), rapid.Bool().Draw(t, "unreachable")
				s.GivenRefused = rapid.Bool().Draw(t, "given refused")
				s.SecretExists, s.HasKubeconfig = true, true
			}))
		d := Decide(s, options)
		require.False(t, d.Drop)
		require.NotEmpty(t, d.Condition.Message)
		require.LessOrEqual(t, len(d.Condition.Message), 1024)
		if s.Unreachable {
			require.Empty(t, d.IssueWith)
		}
	})
}

func TestDescribe(t *testing.T) {
	token := func(payload string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(payload)) + ".c2ln"
	}
	for name, tt := range map[string]struct {
		token string
		want  Given
	}{
		"opaque":          {"abc", Given{Kind: "a token that is no ServiceAccount's"}},
		"no base64":       {"a.!.c", Given{Kind: "a token that is no ServiceAccount's"}},
		"no JSON":         {token("{"), Given{Kind: "a token that is no ServiceAccount's"}},
		"of a person":     {token(`{"sub":"alice","exp":5}`), Given{Kind: "a token that is no ServiceAccount's"}},
		"of a short life": {token(`{"sub":"system:serviceaccount:n:a","exp":5}`), Given{Kind: "a token of ServiceAccount n/a", Namespace: "n", Account: "a", Expires: time.Unix(5, 0)}},
		"legacy": {
			token(`{"sub":"system:serviceaccount:n:a","kubernetes.io/serviceaccount/secret.name":"s"}`),
			Given{Kind: "a token of ServiceAccount n/a", Namespace: "n", Account: "a", LegacySecret: "s"},
		},
	} {
		t.Run(name, func(t *testing.T) { assert.Equal(t, tt.want, Describe(tt.token)) })
	}
}
