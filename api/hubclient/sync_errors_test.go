package hubclient

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/mailbox"
	"github.com/pelotech/ot-fleet/api/trigger"
)

func TestDescribeSyncErrors(t *testing.T) {
	reports := schema.GroupKind{Group: "pelotech.ot", Kind: "ClusterReport"}
	refused := apierrors.NewInvalid(reports, strings.Repeat("x", 9999), nil)
	for name, tt := range map[string]struct {
		up, down error
		want     string
	}{
		"none":                         {nil, nil, ""},
		"the hub's failure":            {errors.New("the hub's API server is gone"), nil, ""},
		"a refused report":             {refused, nil, "the hub refuses a part of the member's report"},
		"control characters and a URL": {apierrors.NewInvalid(reports, "a\x1b[2J\nhttps://user:secret@hub/b", nil), nil, "the hub refuses a part"},
		"a plan that the member does not take": {nil, memberFailure(t, apierrors.NewInternalError(errors.New("no"))),
			"reading ClusterReport ot-agent/default in the member: its API server answers with code 500 InternalError"},
	} {
		t.Run(name, func(t *testing.T) {
			got := describeSyncErrors(tt.up, tt.down)
			require.LessOrEqual(t, len(got), 1024)
			require.NotRegexp(t, `[[:cntrl:]]|secret`, got)
			if tt.want == "" {
				require.Empty(t, got)
				return
			}
			require.Contains(t, got, tt.want)
		})
	}
}

// A single failure, a conflict, and a failure of the hub itself change nothing.
func TestSyncFailuresInARow(t *testing.T) {
	failed, conflict := apierrors.NewBadRequest("no"), apierrors.NewConflict(schema.GroupResource{}, "a", nil)
	var failures SyncFailures
	require.Empty(t, failures.Describe(failed, nil, ""))
	require.Empty(t, failures.Describe(conflict, nil, ""))
	require.Equal(t, "before", failures.Describe(errors.New("the hub's"), nil, "before"))
	described := failures.Describe(failed, nil, "")
	require.NotEmpty(t, described)
	require.Equal(t, described, failures.Describe(nil, conflict, described))
	require.Empty(t, failures.Describe(nil, nil, described))
	require.Empty(t, failures.Describe(failed, nil, ""))
}

// Conflicts end by themselves where another process syncs, too. A webhook's or a proxy's do not, and
// each repetition reads every page live.
func TestLastingConflictsAreErrors(t *testing.T) {
	failed, conflict := errors.New("it does not answer"), apierrors.NewConflict(schema.GroupResource{}, "a", nil)
	for name, tt := range map[string]struct {
		up, down  error
		syncs     int
		wantDelay time.Duration
		wantErr   error
		wantFails []string
	}{
		"none":              {syncs: 1},
		"a conflict":        {up: conflict, syncs: 1, wantDelay: trigger.ConflictRetryDelay},
		"two conflicts":     {up: conflict, down: conflict, syncs: 2, wantDelay: trigger.ConflictRetryDelay},
		"a failure beside":  {up: conflict, down: failed, syncs: 1, wantErr: failed, wantFails: []string{"down"}},
		"lasting conflicts": {up: conflict, syncs: maxConflicts, wantErr: conflict, wantFails: []string{"up"}},
	} {
		t.Run(name, func(t *testing.T) {
			var failures SyncFailures
			for range tt.syncs {
				failures.Describe(tt.up, tt.down, "")
			}
			var fails []string
			delay, err := failures.Result(tt.up, tt.down, func(direction string) { fails = append(fails, direction) })
			require.Equal(t, tt.wantDelay, delay)
			require.ErrorIs(t, err, tt.wantErr)
			require.Equal(t, tt.wantFails, fails)
		})
	}
}

// A member that another replica of the hub might copy is moved to it.
func TestIsSameForAll(t *testing.T) {
	for name, tt := range map[string]struct {
		up   error
		want bool
	}{
		"nothing":                      {},
		"the hub refuses a page":       {apierrors.NewInvalid(schema.GroupKind{Kind: "ClusterReport"}, "page-1", nil), true},
		"the hub does not answer":      {errors.New("connection refused"), false},
		"another replica writes":       {apierrors.NewConflict(schema.GroupResource{}, "a", nil), false},
		"the member refuses":           {memberFailure(t, apierrors.NewForbidden(schema.GroupResource{}, "a", nil)), true},
		"the member fails":             {memberFailure(t, apierrors.NewInternalError(errors.New("no"))), true},
		"the member does not answer":   {memberFailure(t, context.DeadlineExceeded), false},
		"the report is of no cluster":  {memberFailure(t, mailbox.ReportError("it has no clusterUID")), true},
		"a refusal behind another one": {errors.Join(apierrors.NewInvalid(schema.GroupKind{}, "a", nil), errors.New("also")), true},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, tt.want, IsSameForAll(tt.up)) })
	}
}

// memberFailure is the error of a sync whose member answers with err.
func memberFailure(t *testing.T, err error) error {
	t.Helper()
	failing := interceptor.NewClient(fake.NewClientBuilder().WithScheme(Scheme).Build(), interceptor.Funcs{
		Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return err
		},
	})
	relay := mailbox.Relay{
		Hub:    mailbox.Side{Cached: failing, Live: failing, Namespace: "ot-member-a"},
		Member: mailbox.Side{Cached: failing, Live: failing, Namespace: "ot-agent"}, Copies: &mailbox.EqualCopies{},
	}
	_, failed := relay.SyncDown(t.Context())
	require.Error(t, failed)
	return failed
}
