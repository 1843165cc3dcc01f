// Package web is the hub's read API, as JSON: the fleet on one page, members, images, why
// one is not ready, images × clusters, rollouts, prunes (also as CSV), what was transferred of
// late, what a policy would change, and a stream of what changes.
//
// Invariant: unknown is never zero. Members that have not reported are listed as unknown,
// and each image counts the members that may have it.
package web

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pelotech/ot-fleet/api/readapi"
	"github.com/pelotech/ot-fleet/api/v1alpha1"
	"github.com/pelotech/ot-fleet/hub/answers"
	"github.com/pelotech/ot-fleet/hub/history"
	"github.com/pelotech/ot-fleet/hub/inventory"
	"github.com/pelotech/ot-fleet/hub/rollout"
)

const (
	defaultLimit = 100
	maxLimit     = 1000
)

// Pages reads one page of a member's report.
type Pages interface {
	Page(ctx context.Context, member, page string) ([]v1alpha1.ReportedImage, bool, error)
}

// API answers from the memory of the elected replica; others forward to it, see Forwarder.
type API struct {
	Members client.Reader
	// Live bypasses the cache, which has no PruneReportPages: they are large.
	Live  client.Reader
	Index *inventory.Index
	Pages Pages
	// PageNames returns the names of the pages of a member's report, sorted.
	PageNames func(member string) []string
	// RolloutView returns what a decision about a FleetDiskImage depends on; found is false
	// where there is none of that name. It may be read at any time.
	RolloutView func(image string) (view rollout.View, found bool)
	// PruneTargets returns the progress of the targets of an ImagePrune; found is false where
	// there is none of that name.
	PruneTargets func(ctx context.Context, prune string) (targets []readapi.PruneTarget, found bool, err error)
	// ReportsLoaded reports whether everything stored has been read. Before, absence means
	// nothing.
	ReportsLoaded func() bool
	// Changes counts what changes. Without it no answer is remembered.
	Changes *Changes
	// Policy returns the fleet's policy in force, and PolicyKey names its ConfigMap.
	Policy    func() answers.PolicyInForce
	PolicyKey types.NamespacedName
	// Root returns the root of a member's report, nil for none, and when this process
	// received it, nil if unknown.
	Root func(member string) (root *v1alpha1.ReportRoot, receivedAt *time.Time)
	// HeldBySource returns the slots that the fleet-wide budget counts as taken, by group of
	// sources, "" for all; nil without a budget.
	HeldBySource func() map[string]int64
	// History returns what this process remembers, since it is elected.
	History func() *history.History
	// Stopping is closed when the process stops: streams end.
	Stopping <-chan struct{}
	// Clock returns the time that answers are about; nil for time.Now.
	Clock func() time.Time

	verified verifiedReports
	rendered renderedAnswers
	matrices matrixCache
	streams  streamLimit
}

func (a *API) now() time.Time {
	if a.Clock != nil {
		return a.Clock()
	}
	return time.Now()
}

// Handlers returns the handlers by path. They are not below /api, which every
// authenticated user of a cluster may read.
func (a *API) Handlers() map[string]http.Handler {
	handlers := map[string]http.Handler{}
	for path, e := range a.endpoints() {
		handlers[path] = a.handle(e)
	}
	handlers[root+"events"] = http.HandlerFunc(a.streamEvents)
	handlers[root] = a.handle(endpoint{answer: a.refusePath})
	return handlers
}

// root is the path below which all others are.
const root = readapi.Root

const pruneGroupsPath = root + "prunereports/groups"

// endpoint answers one path.
type endpoint struct {
	answer func(*http.Request) (any, error)
	// parameters that it takes; others are refused. nil: any.
	parameters []string
	// remembered: the answer depends on what Changes counts alone.
	remembered bool
	// reads: the answer may read objects live. Invariant: it takes none of the slots of answers
	// from memory, which an API server that answers late must not hold up.
	reads bool
}

func (a *API) endpoints() map[string]endpoint {
	return map[string]endpoint{
		root + "summary":     {answer: a.getSummary, parameters: []string{}, remembered: true},
		root + "why":         {answer: a.explainImage, parameters: []string{"cluster", "namespace", "name"}, remembered: true, reads: true},
		root + "matrix":      {answer: a.getMatrix, parameters: []string{"rows", "images", "cols", "selector", "group", "since"}, remembered: true},
		root + "search":      {answer: a.search, parameters: []string{"q"}},
		root + "history":     {answer: a.getHistory, parameters: []string{"series", "by", "window", "points", "clusters", "limit"}, remembered: true},
		root + "policy":      {answer: a.getPolicy, parameters: []string{}, reads: true},
		root + "transfers":   {answer: a.listTransfers, parameters: []string{"state", "cluster", "source", "search", "sort", "offset", "limit"}, remembered: true},
		root + "blastradius": {answer: a.getBlastRadius, parameters: []string{"policy", "limit"}, remembered: true},

		root + "members":            {answer: a.listMembers, parameters: []string{"search", "state", "selector", "sort", "order", "offset", "limit", "after"}, remembered: true},
		root + "members/detail":     {answer: a.getMember, parameters: []string{"member"}, remembered: true},
		root + "members/images":     {answer: a.listMemberImages, parameters: []string{"member", "page"}, reads: true},
		root + "members/quarantine": {answer: a.getQuarantine, parameters: []string{"member"}, reads: true},
		root + "images":             {answer: a.listImages, parameters: []string{"search", "sort", "order", "offset", "limit", "after"}, remembered: true},
		root + "images/versions":    {answer: a.listFleetImages, parameters: []string{"name", "search", "offset", "limit"}, remembered: true},
		root + "images/clusters":    {answer: a.listImageClusters, parameters: []string{"name", "version", "state", "unreferenced", "search", "offset", "limit"}, reads: true},
		root + "images/detail":      {answer: a.getImage, parameters: []string{"source", "offset", "limit"}, remembered: true},

		root + "rollouts":          {answer: a.listRollouts, parameters: []string{"search", "phase", "sort", "order", "offset", "limit", "after"}, remembered: true},
		root + "rollouts/detail":   {answer: a.getRollout, parameters: []string{"name"}, remembered: true},
		root + "rollouts/reach":    {answer: a.getReach, parameters: []string{"name", "wave"}, remembered: true, reads: true},
		root + "rollouts/clusters": {answer: a.listRolloutClusters, parameters: []string{"name", "state", "wave", "offset", "limit", "after"}, remembered: true},
		root + "rollouts/owners":   {answer: a.getRolloutOwners, parameters: []string{"name"}, reads: true},

		root + "prunereports":        {answer: a.listPruneReports, parameters: []string{"name", "sort", "limit", "after"}, remembered: true},
		pruneGroupsPath:              {answer: a.groupPruneRows, parameters: []string{"report", "by", "images", "clusters", "includeOthers", "unreferencedFor", "limit"}, reads: true},
		root + "prunereports/rows":   {answer: a.listPruneRows, parameters: []string{"report", "cluster", "verdict", "format", "limit", "after"}, reads: true},
		root + "imageprunes":         {answer: a.listPrunes, parameters: []string{"name", "report", "active", "sort", "limit", "after"}, remembered: true},
		root + "imageprunes/targets": {answer: a.listPruneTargets, parameters: []string{"prune", "state", "limit", "after"}, reads: true},
	}
}

func (a *API) refusePath(*http.Request) (any, error) {
	paths := append(slices.Collect(maps.Keys(a.endpoints())), root+"events")
	slices.Sort(paths)
	return nil, httpError{http.StatusNotFound, readapi.UnknownPathMessage + ", only " + strings.Join(paths, ", ")}
}

// checkParameters refuses what an endpoint does not take: to ignore a mistyped key would
// answer another question.
func (e endpoint) checkParameters(request *http.Request) error {
	query, err := url.ParseQuery(request.URL.RawQuery)
	if err != nil {
		return httpError{http.StatusBadRequest, "the query cannot be read: percent-encode its values, as curl does with --get --data-urlencode"}
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch {
		case !slices.Contains(e.parameters, name):
			only := "and none at all"
			if len(e.parameters) > 0 {
				only = "only " + strings.Join(e.parameters, ", ")
			}
			return httpError{http.StatusBadRequest, fmt.Sprintf("%s takes no parameter %s, %s", request.URL.Path, v1alpha1.Truncate(name, maxKeyBytes), only)}
		case len(query[name]) > 1:
			return httpError{http.StatusBadRequest, fmt.Sprintf("parameter %s is given %d times: give it once", name, len(query[name]))}
		}
	}
	return nil
}

// maxKeyBytes bounds what a message quotes of a request.
const maxKeyBytes = 256

// maxErrorBytes bounds a message of others.
const maxErrorBytes = 1024

// httpError is an error with its HTTP status.
type httpError struct {
	status  int
	message string
}

func (r httpError) Error() string { return r.message }

func (a *API) handle(e endpoint) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		err := a.checkRequest(w, request)
		if err == nil && e.parameters != nil {
			err = e.checkParameters(request)
		}
		if err != nil {
			writeError(w, request, err)
			return
		}
		answer, file, err := a.render(e, request)
		switch {
		case err != nil:
			writeError(w, request, err)
		case file != nil:
			sendDownload(w, request, *file)
		default:
			writeAnswer(w, request, answer)
		}
	})
}

// checkRequest refuses what no path answers.
func (a *API) checkRequest(w http.ResponseWriter, request *http.Request) error {
	switch {
	case request.Method != http.MethodGet && request.Method != http.MethodHead:
		w.Header().Set("Allow", "GET, HEAD")
		return httpError{http.StatusMethodNotAllowed, "this API is read-only: use GET"}
	case !a.ReportsLoaded():
		w.Header().Set("Retry-After", "1")
		return httpError{http.StatusServiceUnavailable, "the elected replica of the hub is starting and still reads the stored reports: try again"}
	}
	return nil
}

func writeError(w http.ResponseWriter, request *http.Request, err error) {
	status := http.StatusInternalServerError
	if e, ok := errors.AsType[httpError](err); ok {
		status = e.status
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(readapi.ErrorAnswer{Error: v1alpha1.SanitizeText(err.Error(), maxErrorBytes)}); err != nil {
		logUnsent(request, err)
	}
}

func logUnsent(request *http.Request, err error) {
	log.FromContext(request.Context()).V(1).Info("Failed to write response", "path", request.URL.Path, "error", err.Error())
}

// sendDownload writes a file. A failure aborts the connection: a response that ends
// normally would look complete.
func sendDownload(w http.ResponseWriter, request *http.Request, file download) {
	w.Header().Set("Content-Type", file.contentType)
	w.Header().Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", file.name))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(http.StatusOK)
	if request.Method == http.MethodHead {
		return
	}
	if err := file.write(w); err != nil {
		log.FromContext(request.Context()).Info("Failed to write download; aborting the connection", "path", request.URL.Path, "error", err.Error())
		panic(http.ErrAbortHandler)
	}
}

func parseLimit(request *http.Request) (int, error) {
	text := request.URL.Query().Get("limit")
	if text == "" {
		return defaultLimit, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > maxLimit {
		return 0, httpError{http.StatusBadRequest, fmt.Sprintf("limit=%s: must be a number from 1 to %d", text, maxLimit)}
	}
	return n, nil
}

// sourceForm says how to name an image.
const sourceForm = `a source as /fleet/v1/images lists it, such as "http https://images.example.com/ubuntu.qcow2 sha256:…", or its URL`

// pagePattern matches the names of a report's pages.
var pagePattern = regexp.MustCompile(`^page(-[0-9]{1,63})?$`)

func (a *API) listMemberImages(request *http.Request) (any, error) {
	name, page := request.URL.Query().Get("member"), request.URL.Query().Get("page")
	switch {
	case name == "":
		return nil, httpError{http.StatusBadRequest, "member is required: a member from /fleet/v1/members"}
	case page != "" && !pagePattern.MatchString(page):
		return nil, httpError{http.StatusBadRequest, fmt.Sprintf("page=%s: must be the next of the former response", v1alpha1.Truncate(page, maxKeyBytes))}
	}
	pages := a.PageNames(name)
	if len(pages) == 0 {
		if _, known := a.Index.Totals(name); !known {
			return nil, notFound("MemberCluster", name)
		}
	}
	// A page that is gone since has been split or joined: what follows it is next.
	at, _ := slices.BinarySearch(pages, page)
	answer := readapi.MemberImages{Images: []v1alpha1.ReportedImage{}, Unknown: a.Index.UnknownReason(name)}
	if at < len(pages) {
		images, found, err := a.Pages.Page(request.Context(), name, pages[at])
		if err != nil {
			return nil, err
		}
		if found {
			answer.Images = slices.DeleteFunc(redactImages(images), func(img v1alpha1.ReportedImage) bool { return img.IsPruned() })
		}
		if at+1 < len(pages) {
			answer.Next = pages[at+1]
		}
	}
	return answer, nil
}

func notFound(kind, name string) error {
	return httpError{http.StatusNotFound, fmt.Sprintf("there is no %s %s", kind, v1alpha1.Truncate(name, maxKeyBytes))}
}

// redactImages redacts what agents up to 0.2 report. Their pages are stored unchanged, since a
// digest covers them.
func redactImages(images []v1alpha1.ReportedImage) []v1alpha1.ReportedImage {
	redacted := slices.Clone(images)
	for i := range redacted {
		img := &redacted[i]
		img.Source, img.Message = v1alpha1.RedactSource(img.Source), v1alpha1.SanitizeText(img.Message, maxErrorBytes)
	}
	return redacted
}
