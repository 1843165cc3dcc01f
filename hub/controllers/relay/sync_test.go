package relay

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/pelotech/ot-fleet/api/mailbox"
)

var errLost = errors.New("connection lost")

// TestPlanIsForTheClusterThatAnswers: a member gets no plan while another cluster answers in its
// place, or one that is another member's.
func TestPlanIsForTheClusterThatAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		sync mailboxSync
		want bool
	}{
		"a new member":                            {sync: mailboxSync{}, want: true},
		"the known cluster":                       {sync: mailboxSync{known: "a"}, want: true},
		"another cluster answers":                 {sync: mailboxSync{known: "a", up: mailbox.UpResult{OtherCluster: "b"}}},
		"it answered, and the report is not read": {sync: mailboxSync{known: "a", before: mailbox.Findings{OtherCluster: "b"}, upErr: errLost}},
		"it answered, and the report is delayed":  {sync: mailboxSync{known: "a", before: mailbox.Findings{OtherCluster: "b"}, uploadDelayed: true}},
		"it answered, and is accepted since":      {sync: mailboxSync{known: "b", before: mailbox.Findings{OtherCluster: "b"}, uploadDelayed: true}, want: true},
		"the known one is back":                   {sync: mailboxSync{known: "a", before: mailbox.Findings{OtherCluster: "b"}}, want: true},
		"its cluster is another member's":         {sync: mailboxSync{holder: "elsewhere"}},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, tt.sync.maySyncDown())
		})
	}
}

func TestFindingsAfterSync(t *testing.T) {
	invalid := apierrors.NewInvalid(schema.GroupKind{Kind: "ClusterReport"}, "page", nil)
	const refused, late = "the hub refuses a part of the report", "the report is copied with a delay"
	for name, tt := range map[string]struct {
		sync            mailboxSync
		syncError, late string
		want            mailbox.Findings
	}{
		"in sync": {
			sync: mailboxSync{up: mailbox.UpResult{RootSequence: 5}, before: mailbox.Findings{OtherCluster: "b", SyncError: refused, ReportRefused: true}},
			want: mailbox.Findings{ConfirmedSequence: 5},
		},
		"refused": {
			sync:      mailboxSync{up: mailbox.UpResult{RootSequence: 5}, upErr: invalid},
			syncError: refused,
			want:      mailbox.Findings{ConfirmedSequence: 5, SyncError: refused, ReportRefused: true},
		},
		"refused once, which is not said yet": {
			sync: mailboxSync{upErr: invalid},
			want: mailbox.Findings{},
		},
		"refused before, and the member is not reached now": {
			sync:      mailboxSync{upErr: errLost, before: mailbox.Findings{SyncError: refused, ReportRefused: true}},
			syncError: refused,
			want:      mailbox.Findings{SyncError: refused, ReportRefused: true},
		},
		"refused before, and fails for another reason": {
			sync:      mailboxSync{upErr: errLost, before: mailbox.Findings{SyncError: refused, ReportRefused: true}},
			syncError: "it does not answer in time",
			want:      mailbox.Findings{SyncError: "it does not answer in time"},
		},
		"late": {
			sync: mailboxSync{up: mailbox.UpResult{RootSequence: 5}},
			late: late,
			want: mailbox.Findings{ConfirmedSequence: 5, SyncError: late, ReportRefused: true},
		},
		"late and failing": {
			sync:      mailboxSync{downErr: errLost},
			syncError: "it does not answer in time", late: late,
			want: mailbox.Findings{SyncError: "it does not answer in time", ReportRefused: true},
		},
		"delayed: what was found of the report stays": {
			sync: mailboxSync{uploadDelayed: true, before: mailbox.Findings{OtherCluster: "b", ReportOlder: true, ConfirmedSequence: 5, SyncError: late, ReportRefused: true}},
			want: mailbox.Findings{OtherCluster: "b", ReportOlder: true, ConfirmedSequence: 5, SyncError: late, ReportRefused: true},
		},
		"delayed, and the plan is refused": {
			sync:      mailboxSync{uploadDelayed: true, downErr: invalid, before: mailbox.Findings{SyncError: late, ReportRefused: true, NewerGrant: 3}},
			syncError: "the member refuses the plan",
			want:      mailbox.Findings{SyncError: "the member refuses the plan", ReportRefused: true, NewerGrant: 3},
		},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, tt.sync.decideFindings(tt.syncError, tt.late))
		})
	}
}
