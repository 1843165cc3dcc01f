package command

import (
	"bytes"
	"context"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/cli/connect"
	"github.com/pelotech/ot-fleet/cli/exit"
	"github.com/pelotech/ot-fleet/cli/render"
	hubprune "github.com/pelotech/ot-fleet/hub/prune"
)

// newPruneHub returns a hub with a complete report of two pages, to which change is applied,
// and a caller who may approve or not.
func newPruneHub(allowed bool, change func(*v1alpha1.PruneReport, []v1alpha1.PruneReportPage)) *connect.Cluster {
	parts := []v1alpha1.ReportedCluster{
		{Cluster: "bergen", Candidates: []v1alpha1.PruneCandidate{{Namespace: "vmdi-farm", Name: "centos-5", UID: "1", Origin: v1alpha1.OriginPlan, Bytes: 24 << 30}}},
		{Cluster: "oslo", Candidates: []v1alpha1.PruneCandidate{{Namespace: "vmdi-farm", Name: "centos-5", UID: "2", Origin: v1alpha1.OriginPlan, Bytes: 24 << 30}}},
	}
	report := &v1alpha1.PruneReport{ObjectMeta: metav1.ObjectMeta{Name: "spring", UID: "r"}}
	digester := hubprune.NewDigester(report.UID)
	pages := make([]v1alpha1.PruneReportPage, len(parts))
	for n := range parts {
		pages[n].Clusters = parts[n : n+1]
		digester.AddPage(pages[n].Clusters)
	}
	report.Status = v1alpha1.PruneReportStatus{Phase: v1alpha1.PruneReportComplete, Pages: int32(len(pages)), Digest: digester.Digest(), Candidates: v1alpha1.PruneTotal{Count: 2, Bytes: 48 << 30}}
	for n := range pages {
		pages[n].Name = hubprune.PageName(report.Name, report.Status.Digest, n)
	}
	if change != nil {
		change(report, pages)
	}
	objects := []client.Object{report}
	for n := range pages {
		objects = append(objects, &pages[n])
	}
	create := func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
		switch review := object.(type) {
		case *authenticationv1.SelfSubjectReview:
			review.Status.UserInfo.Username = "anna@example.com"
			return nil
		case *authorizationv1.SelfSubjectAccessReview:
			review.Status.Allowed = allowed
			return nil
		}
		return c.Create(ctx, object, options...)
	}
	c := fake.NewClientBuilder().WithScheme(connect.Scheme).WithObjects(objects...).WithInterceptorFuncs(interceptor.Funcs{Create: create}).Build()
	return &connect.Cluster{Context: "hub", Config: &rest.Config{}, Client: c}
}

func newTestEnvironment(answer string) (*environment, *bytes.Buffer, *bytes.Buffer) {
	out, errOut := &bytes.Buffer{}, &bytes.Buffer{}
	now := time.Date(2026, 3, 2, 16, 21, 0, 0, time.UTC)
	return &environment{
		IOStreams: genericiooptions.IOStreams{In: strings.NewReader(answer), Out: out, ErrOut: errOut}, now: func() time.Time { return now },
	}, out, errOut
}

func TestApprovePrune(t *testing.T) {
	digestOf := func(hub *connect.Cluster) string {
		report := &v1alpha1.PruneReport{}
		if err := hub.Client.Get(context.Background(), client.ObjectKey{Name: "spring"}, report); err != nil {
			return ""
		}
		return report.Status.Digest
	}
	for name, test := range map[string]struct {
		change    func(*v1alpha1.PruneReport, []v1alpha1.PruneReportPage)
		forbidden bool
		digest    string // of the report, where it is "right"
		yes       bool
		answer    string
		spec      v1alpha1.ImagePruneSpec

		wantError string
		wantCode  exit.Code
	}{
		"agreed":               {answer: "y\n"},
		"agreed beforehand":    {yes: true, digest: "right"},
		"declined":             {answer: "n\n", wantError: "nothing was approved", wantCode: exit.No},
		"nobody answers":       {answer: "", wantError: "nothing was approved", wantCode: exit.No},
		"another digest":       {yes: true, digest: "0", wantError: "another report than the one that was reviewed", wantCode: exit.Unanswered},
		"not allowed":          {forbidden: true, answer: "y\n", wantError: "ClusterRole ot-fleet-pruner", wantCode: exit.Unanswered},
		"nothing selected":     {answer: "y\n", spec: v1alpha1.ImagePruneSpec{Images: []string{"vmdi-farm/other"}}, wantError: "no candidate is named vmdi-farm/other", wantCode: exit.Unanswered},
		"of a page that lacks": {answer: "y\n", change: func(_ *v1alpha1.PruneReport, p []v1alpha1.PruneReportPage) { p[1].Name = "other" }, wantError: "lacks its page", wantCode: exit.Unanswered},
		"of a changed page": {answer: "y\n", change: func(_ *v1alpha1.PruneReport, p []v1alpha1.PruneReportPage) {
			p[1].Clusters = []v1alpha1.ReportedCluster{{Cluster: "oslo", Candidates: []v1alpha1.PruneCandidate{{Namespace: "vmdi-farm", Name: "precious", UID: "3", Origin: v1alpha1.OriginPlan}}}}
		}, wantError: "do not match its digest", wantCode: exit.Unanswered},
		"incomplete": {answer: "y\n", change: func(r *v1alpha1.PruneReport, _ []v1alpha1.PruneReportPage) {
			r.Status.Phase = v1alpha1.PruneReportCollecting
		}, wantError: "is not complete", wantCode: exit.Unanswered},
	} {
		t.Run(name, func(t *testing.T) {
			hub := newPruneHub(!test.forbidden, test.change)
			e, out, _ := newTestEnvironment(test.answer)
			if test.digest == "right" {
				test.digest = digestOf(hub)
			}
			p := &v1alpha1.ImagePrune{Spec: test.spec}
			err := e.approvePrune(t.Context(), hub, "spring", test.digest, test.yes, p)
			var created v1alpha1.ImagePruneList
			require.NoError(t, hub.Client.List(t.Context(), &created))
			if test.wantError != "" {
				require.ErrorContains(t, err, test.wantError)
				assert.Equal(t, test.wantCode, exit.CodeOf(err))
				assert.Empty(t, created.Items, "nothing may be deleted")
				return
			}
			require.NoError(t, err)
			require.Len(t, created.Items, 1)
			assert.Equal(t, "spring", created.Items[0].Name)
			assert.Equal(t, "anna@example.com", created.Items[0].Spec.ApprovedBy)
			assert.Equal(t, v1alpha1.PruneReportRef{Name: "spring", Digest: digestOf(hub)}, created.Items[0].Spec.ReportRef)
			assert.Contains(t, out.String(), "ImagePrune spring created")
		})
	}
}

func TestApproveTwice(t *testing.T) {
	hub := newPruneHub(true, nil)
	e, _, _ := newTestEnvironment("y\n")
	require.NoError(t, e.approvePrune(t.Context(), hub, "spring", "", false, &v1alpha1.ImagePrune{}))
	e, _, _ = newTestEnvironment("y\n")
	require.ErrorContains(t, e.approvePrune(t.Context(), hub, "spring", "", false, &v1alpha1.ImagePrune{}), "choose another name with --name")
}

func TestAwaitReport(t *testing.T) {
	collecting := func(r *v1alpha1.PruneReport, _ []v1alpha1.PruneReportPage) {
		r.Status.Phase, r.Status.Clusters = v1alpha1.PruneReportCollecting, v1alpha1.AnswerCounts{Total: 3, Answered: 1}
	}
	e, _, _ := newTestEnvironment("")
	view, err := e.awaitReport(t.Context(), newPruneHub(true, nil), "spring", time.Minute)
	require.NoError(t, err)
	assert.Equal(t, exit.Yes, view.ExitCode(false))

	_, err = e.awaitReport(t.Context(), newPruneHub(true, nil), "winter", time.Minute)
	require.ErrorContains(t, err, "was deleted")

	_, err = e.awaitReport(t.Context(), newPruneHub(true, collecting), "spring", 0)
	require.ErrorContains(t, err, "is not complete within 0s")
	assert.Equal(t, exit.NotYet, exit.CodeOf(err))

	interrupted, interrupt := context.WithCancel(t.Context())
	said := &interrupter{interrupt: interrupt}
	e.ErrOut = said
	_, err = e.awaitReport(interrupted, newPruneHub(true, collecting), "spring", time.Minute)
	require.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, "PruneReport spring: 1 of 3 clusters answered\n", said.String())
}

// A hub that fails for a moment does not end the wait.
func TestAwaitReportTriesAgain(t *testing.T) {
	hub := newPruneHub(true, nil)
	answers := []func(*v1alpha1.PruneReport) error{
		func(r *v1alpha1.PruneReport) error {
			r.Status.Phase = v1alpha1.PruneReportCollecting
			return nil
		},
		func(*v1alpha1.PruneReport) error { return apierrors.NewServiceUnavailable("it restarts") },
		func(*v1alpha1.PruneReport) error { return nil },
	}
	hub.Client = interceptor.NewClient(hub.Client, interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, into client.Object, options ...client.GetOption) error {
		if err := c.Get(ctx, key, into, options...); err != nil {
			return err
		}
		answer := answers[0]
		answers = answers[1:]
		return answer(into.(*v1alpha1.PruneReport))
	}})
	e, _, errOut := newTestEnvironment("")
	view, err := e.awaitReport(t.Context(), hub, "spring", time.Hour)
	require.NoError(t, err)
	assert.True(t, view.Ended())
	assert.Contains(t, errOut.String(), "it restarts; trying again")
}

// interrupter cancels what goes on with the first thing that is said.
type interrupter struct {
	bytes.Buffer
	interrupt func()
}

func (i *interrupter) Write(p []byte) (int, error) {
	i.interrupt()
	return i.Buffer.Write(p)
}

func (i *interrupter) WriteString(s string) (int, error) { return i.Write([]byte(s)) }

func TestCreateReport(t *testing.T) {
	e, _, _ := newTestEnvironment("")
	hub := newPruneHub(true, nil)
	report, err := e.createReport(t.Context(), hub, nil, &reportFlags{unreferencedFor: new(168 * time.Hour), images: []string{"ubuntu-*"}, selector: "region=eu,edge!=true"})
	require.NoError(t, err)
	assert.Equal(t, "report-20260302-162100", report.Name)
	assert.Equal(t, 168*time.Hour, report.Spec.UnreferencedFor.Duration)
	selector, err := metav1.LabelSelectorAsSelector(report.Spec.Placement.ClusterSelector)
	require.NoError(t, err)
	assert.True(t, selector.Matches(labels.Set{"region": "eu"}))
	assert.False(t, selector.Matches(labels.Set{"region": "eu", "edge": "true"}))
	_, err = e.createReport(t.Context(), hub, []string{"spring"}, &reportFlags{})
	require.ErrorContains(t, err, "choose another name")
	_, err = e.createReport(t.Context(), hub, []string{"x"}, &reportFlags{selector: "a=b=c"})
	require.ErrorContains(t, err, "-l a=b=c")
}

// status counts only what is left to delete: the review that it names says why it shows more.
func TestReviewSaysWhatWasPruned(t *testing.T) {
	for name, test := range map[string]struct {
		pruned     []int32 // by one ImagePrune each
		forbidden  bool
		wantScreen string
	}{
		"nothing": {wantScreen: "CAN GO  2 images, 48 GiB\n\n"},
		"one":     {pruned: []int32{1}, wantScreen: "CAN GO  2 images, 48 GiB\nPRUNED SINCE  at least 1 image, 24 GiB\n"},
		// Who deleted which of them is not recorded: it is one image, or both.
		"by two":  {pruned: []int32{1, 1}, wantScreen: "CAN GO  2 images, 48 GiB\nPRUNED SINCE  at least 1 image, 24 GiB\n"},
		"unknown": {pruned: []int32{1}, forbidden: true, wantScreen: "(what was pruned since is not known: "},
	} {
		t.Run(name, func(t *testing.T) {
			e, _, _ := newTestEnvironment("")
			hub := newPruneHub(true, nil)
			report, err := getReport(t.Context(), hub, "spring")
			require.NoError(t, err)
			for i, pruned := range test.pruned {
				p := &v1alpha1.ImagePrune{ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(i)}}
				p.Spec.ReportRef = v1alpha1.PruneReportRef{Name: "spring", Digest: report.Status.Digest}
				p.Spec.Images = []string{[]string{"vmdi-farm/c*", "vmdi-farm/*-5"}[i]}
				p.Status.Targets.Pruned, p.Status.PrunedBytes = pruned, int64(pruned)*24<<30
				require.NoError(t, hub.Client.Create(t.Context(), p))
			}
			hub.Client = interceptor.NewClient(hub.Client, interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
				if test.forbidden {
					return apierrors.NewForbidden(schema.GroupResource{Group: v1alpha1.GroupVersion.Group, Resource: "imageprunes"}, "", nil)
				}
				return c.List(ctx, list, options...)
			}})
			view, err := e.gatherReview(t.Context(), hub, "spring", readapi.PruneByImage, &v1alpha1.ImagePruneSpec{}, 0)
			require.NoError(t, err)
			page := &render.Page{}
			view.Draw(page)
			assert.Contains(t, render.Print(page, render.Options{}), test.wantScreen)
		})
	}
}

func TestReviewBeforeApprovalSelectsTheSame(t *testing.T) {
	errOut := &bytes.Buffer{}
	code := Run([]string{"prune", "approve", "spring", "-y", "--clusters", "lab", "--include-others"}, genericiooptions.IOStreams{In: &bytes.Buffer{}, Out: &bytes.Buffer{}, ErrOut: errOut}, "v1.2.3")
	assert.Equal(t, exit.Unanswered, code)
	assert.Contains(t, errOut.String(), "kubectl ot prune review spring --clusters lab --include-others prints it")
}
