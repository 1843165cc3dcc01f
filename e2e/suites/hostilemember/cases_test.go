//go:build linux

package hostilemember_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

// hostileCase is one way in which a member's API server is wrong. One of answer, lie and listen
// is set.
type hostileCase struct {
	name string
	// answer replaces the honest answer to the selected requests.
	on     selection
	answer fault
	// lie changes each ClusterReport.
	lie func(report object)
	// listen starts a server that is wrong before it answers.
	listen func(*testing.T) (address string)
	// condition of the MemberCluster that has one of want in its message.
	condition string
	want      []string
}

func (c *hostileCase) isNamed(m *v1alpha1.MemberCluster) bool {
	condition := meta.FindStatusCondition(m.Status.Conditions, c.condition)
	if condition == nil {
		return false
	}
	for _, text := range c.want {
		if strings.Contains(condition.Message, text) {
			return true
		}
	}
	return false
}

// selection of requests.
type selection struct{ name, verbs, resource string }

var (
	probes      = selection{"probe", "get", "clusterreports"}
	lists       = selection{"list", "list", ""}
	watches     = selection{"watch", "watch", ""}
	planWrites  = selection{"write of the plan", "create update", "clusterplans"}
	grantWrites = selection{"write of the grant", "create update", "transfergrants"}
)

func (s selection) matches(op operation) bool {
	return strings.Contains(s.verbs, op.verb) && (s.resource == "" || s.resource == op.resource)
}

func (s selection) writes() bool { return strings.HasPrefix(s.name, "write") }

// answers are faults by the kinds of requests that they answer. limits end the connection, others
// are named where the request is.
var answers = []struct {
	name  string
	fault fault
	limit bool
	on    []selection
	want  []string
}{
	{"endless text", endless(`{"apiVersion":"`, "x"), true, []selection{probes, lists, planWrites, grantWrites}, []string{"is larger than 12 MiB"}},
	{"endless values", endless(`{"items":[1`, ",1"), true, []selection{lists, planWrites}, []string{"counting 128 bytes for each value"}},
	{"endless nesting", endless(`{"a":`, `[`), true, []selection{probes, lists}, []string{"counting 128 bytes for each value"}},
	{"a terabyte", announcedHuge, true, []selection{probes, lists}, []string{"is larger than 12 MiB"}},
	{"gzip bomb", gzipBomb, true, []selection{probes, lists, watches, planWrites}, []string{"is compressed"}},
	{"endless error", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		writeForever(w, "x")
	}, true, []selection{probes, lists, grantWrites}, []string{"has an error of more than 256 KiB"}},
	{"protobuf", answerWith(http.StatusOK, "application/vnd.kubernetes.protobuf", "k8s\x00\x0a\xff\xff\xff\xff\x0f"), true, []selection{probes, lists, watches}, []string{"has a content type"}},
	{"large headers", headersOf(4), false, []selection{probes, lists}, []string{"has headers of more than 64 KiB", "the connection breaks"}},
	{"huge headers", headersOf(64), false, []selection{probes, lists}, []string{"has headers of more than 64 KiB", "the connection breaks"}},
	{"endless 1xx", endlessInformation, false, []selection{probes}, []string{"has headers of more than 64 KiB", "1xx", "does not answer in time", "the connection breaks"}},

	{"a web page", answerWith(http.StatusOK, "text/html", page), false, []selection{probes, lists, planWrites}, []string{"of no use"}},
	{"a web page as JSON", json200(page), false, []selection{probes, lists}, []string{"of no use"}},
	{"a proxy's error", answerWith(http.StatusBadGateway, "text/html", page), false, []selection{probes, lists, grantWrites}, []string{"answers with code 502"}},
	{"half of the JSON", json200(`{"apiVersion":"` + apiVersion + `","kind":"Cluster`), false, []selection{probes, lists, planWrites}, []string{"of no use"}},
	{"invalid UTF-8 as JSON", json200("\xff\xfe\x00{"), false, []selection{probes, lists}, []string{"of no use"}},
	{"nothing", json200(""), false, []selection{probes, lists}, []string{"of no use"}},
	{"null", json200("null"), false, []selection{probes, lists}, []string{"of no use"}},
	{"a Pod", json200(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"default","namespace":"ot-agent","resourceVersion":"7"}}`), false, []selection{probes, lists, planWrites}, []string{"of no use"}},
	{"success of nothing", json200(`{"apiVersion":"v1","kind":"Status","status":"Success"}`), false, []selection{probes, planWrites}, []string{"of no use"}},
	{"an object of another namespace", json200(`{"apiVersion":"` + apiVersion + `","kind":"ClusterReport","metadata":{"name":"default","namespace":"kube-system","resourceVersion":"7"},"sequence":1,"clusterUID":"x","root":{}}`), false, []selection{probes}, []string{"of no use"}},
	{"a plan of another name", json200(`{"apiVersion":"` + apiVersion + `","kind":"ClusterPlan","metadata":{"name":"other","namespace":"ot-agent","resourceVersion":"7"},"spec":{}}`), false, []selection{planWrites}, []string{"of no use"}},

	{"silence", noAnswer, false, []selection{probes, lists, planWrites}, []string{"does not answer in time"}},
	{"a stalled body", stalled, false, []selection{probes, planWrites, grantWrites}, []string{"does not answer in time"}},
	{"a broken body", broken, false, []selection{probes, lists, planWrites}, []string{"the connection breaks", "of no use"}},

	{"401", failing(http.StatusUnauthorized, "Unauthorized"), false, []selection{probes, lists, watches, planWrites}, []string{"refuses the credential"}},
	{"403", failing(http.StatusForbidden, "Forbidden"), false, []selection{probes, lists, watches, grantWrites}, []string{"lacks a permission"}},
	{"404", failing(http.StatusNotFound, "NotFound"), false, []selection{lists, planWrites}, []string{"answers with code 404", "answers with code 409"}},
	{"404 without a Status", answerWith(http.StatusNotFound, "text/plain", "404 page not found"), false, []selection{probes}, []string{"does not serve ClusterReports"}},
	{"409", failing(http.StatusConflict, "Conflict"), false, []selection{probes, planWrites}, []string{"answers with code 409"}},
	{"410", failing(http.StatusGone, "Expired"), false, []selection{lists, watches}, []string{"answers with code 410"}},
	{"422", failing(http.StatusUnprocessableEntity, "Invalid"), false, []selection{planWrites}, []string{"answers with code 422"}},
	{"429", failing(http.StatusTooManyRequests, "TooManyRequests"), false, []selection{probes, lists, planWrites}, []string{"answers with code 429"}},
	{"500", failing(http.StatusInternalServerError, "InternalError"), false, []selection{probes, lists, watches, planWrites}, []string{"answers with code 500"}},
	{"503", failing(http.StatusServiceUnavailable, "ServiceUnavailable"), false, []selection{probes, lists}, []string{"answers with code 503"}},
	{"a reason of 9 KiB", failing(http.StatusTeapot, strings.Repeat("Reason", 1500)), false, []selection{probes}, []string{"answers with code 418"}},

	{"a redirect to loopback", redirected(func() string { return canary.URL }), false, []selection{probes, lists, watches, planWrites}, []string{"redirects to"}},
	{"a redirect to the hub's API server", redirected(func() string { return shared.Plane.Config().Host }), false, []selection{probes, planWrites}, []string{"redirects to"}},

	{"100,000 objects", listOf(func(n int) object { return reportWith(pageMetadata(n)) }, 100_000, ""), true, []selection{lists}, []string{"is larger than 12 MiB"}},
	{"pages without end", endlessPages(), true, []selection{lists}, []string{"more than 512 objects"}},
	{"empty pages without end", emptyPages, false, []selection{lists}, []string{"a page is empty"}},
	{"objects of another namespace", listOf(func(n int) object {
		return reportWith(object{"namespace": "kube-system", "name": "default", "uid": "1", "resourceVersion": "1"})
	}, 1, ""), false, []selection{lists}, []string{"of no use"}},
	{"objects without a name", listOf(func(int) object { return reportWith(object{"namespace": agentNamespace}) }, 3, ""), false, []selection{lists}, []string{"of no use"}},
	{"an annotation of 5 MiB", listOf(func(n int) object {
		o := pageMetadata(n)
		o["annotations"] = object{"a": strings.Repeat("x", 5<<20)}
		return reportWith(o)
	}, 1, ""), true, []selection{lists}, []string{"has an object of more than 4 MiB"}},
	{"managedFields of 20 MiB", listOf(func(n int) object {
		o := pageMetadata(n)
		o["managedFields"] = []object{{"manager": strings.Repeat("x", 20<<20)}}
		return reportWith(o)
	}, 1, ""), true, []selection{lists}, []string{"is larger than 12 MiB"}},

	{"an endless event", endless(`{"type":"ADDED","object":{"kind":"`, "x"), true, []selection{watches}, []string{"has an event larger than 12 MiB"}},
	{"a flood of events", events(true, event("MODIFIED", reportWith(pageMetadata(1)))), true, []selection{watches}, []string{"has too many events"}},
	{"a flood of bookmarks", events(true, event("BOOKMARK", reportWith(object{"resourceVersion": "1"}))), true, []selection{watches}, []string{"has too many events"}},
	{"1,000 objects", events(false, manyEvents(1000)...), true, []selection{watches}, []string{"more than 512 objects", "has too many events"}},
	{"the end at once", endedWatch(), false, []selection{watches}, []string{"a watch ends at once"}},
	{"an unknown event", endedWatch(event("EXPLODED", reportWith(pageMetadata(1)))), false, []selection{watches}, []string{"its lists and watches fail"}},
	{"no JSON", endedWatch(page), false, []selection{watches}, []string{"its lists and watches fail"}},
	{"an event without an object", endedWatch(`{"type":"ADDED","object":null}`), false, []selection{watches}, []string{"its lists and watches fail"}},
	{"errors", endedWatch(event("ERROR", object{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "again"})), false, []selection{watches}, []string{"answers with code 410"}},
	{"other kinds", events(false, strings.Repeat(event("ADDED", object{"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": "a", "namespace": agentNamespace}})+"\n", 3)), false, []selection{watches}, []string{"its lists and watches fail"}},
	{"another namespace", events(false, strings.Repeat(event("ADDED", reportWith(object{"name": "default", "namespace": "kube-system", "resourceVersion": "9"}))+"\n", 3)), false, []selection{watches}, []string{"its lists and watches fail"}},
}

func manyEvents(count int) (all []string) {
	for n := range count {
		all = append(all, event("ADDED", reportWith(pageMetadata(n))))
	}
	return all
}

// servers are wrong before they answer.
var servers = []struct {
	name   string
	listen func(*testing.T) string
	want   []string
}{
	{"accepts and is silent", silentServer, []string{"does not answer in time"}},
	{"refuses connections", closedPort, []string{"the connection is refused"}},
	{"resets connections", resettingServer, []string{"the connection breaks", "does not answer in time"}},
	{"sends garbage for TLS", garbageServer, []string{"TLS", "cannot be reached"}},
	{"speaks no TLS", plainServer, []string{"does not speak TLS"}},
	{"has an expired certificate", expiredServer, []string{"has expired or is not valid yet"}},
	{"has another's certificate", misnamedServer, []string{"is not for 127.0.0.1"}},
	{"has a stranger's certificate", strangerServer, []string{"an authority that is not in the kubeconfig"}},
	{"hangs up after the handshake", hangingUpServer, []string{"the connection breaks", "does not answer in time"}},
	{"speaks no HTTP", mumblingServer, []string{"of no use"}},
	{"has an endless status line", endlessLineServer, []string{"has headers of more than 64 KiB"}},
	{"has endless headers", endlessHeadServer, []string{"has headers of more than 64 KiB"}},
	{"has a negative length", wrongLengthServer, []string{"Content-Length", "of no use"}},
	{"has a chunk of 2^68 bytes", wrongChunkServer, []string{"chunk", "of no use"}},
	{"goes away", goAwayServer, []string{"the connection breaks", "does not answer in time"}},
	{"resets streams", streamResetServer, []string{"the connection breaks"}},
	{"refuses streams", refusedStreamServer, []string{"the connection breaks", "does not answer in time"}},
	{"floods pings", pingFloodServer, []string{"does not answer in time", "the connection breaks"}},
	{"never ends a header block", continuationServer, []string{"has headers of more than 64 KiB", "the connection breaks"}},
	{"pushes", pushServer, []string{"the connection breaks", "does not answer in time"}},
}

// lies are reports that are wrong.
var lies = []struct {
	name      string
	lie       func(report object)
	condition string
	want      []string
}{
	{"it is another member's cluster", func(o object) { o["clusterUID"] = "fake-fake-0" }, v1alpha1.ConditionIdentityConfirmed, []string{"cluster fake-fake-0 answers"}},
	{"it is no cluster", func(o object) { o["clusterUID"] = "" }, v1alpha1.ConditionMailboxSynced, []string{"has no clusterUID"}},
	{"its sequence goes back", func(o object) { o["sequence"] = 1 }, v1alpha1.ConditionMailboxSynced, []string{"is older than the hub's copy"}},
	{"its sequence is negative", func(o object) { o["sequence"] = -9 }, v1alpha1.ConditionMailboxSynced, []string{"is older than the hub's copy"}},
	{"its sequence is no number", func(o object) { o["sequence"] = json.Number("1e400") }, v1alpha1.ConditionReachable, []string{"of no use"}},
	{"it is from the year 9999", rootLie("observedAt", "9999-12-31T23:59:59Z"), v1alpha1.ConditionAgentHealthy, []string{"ahead of the hub's"}},
	{"it is from 1970", rootLie("observedAt", "1970-01-01T00:00:00Z"), v1alpha1.ConditionAgentHealthy, []string{"behind the hub's"}},
	{"it is from yesterday", rootLie("observedAt", "yesterday"), v1alpha1.ConditionReachable, []string{"of no use"}},
	{"its heart never beats", rootLie("heartbeatSeconds", 2147483647), v1alpha1.ConditionAgentHealthy, []string{"2147483647"}},
	{"its heart beats always", rootLie("heartbeatSeconds", 0), v1alpha1.ConditionMailboxSynced, []string{"the hub refuses"}},
	{"its budget is huge", rootLie("budget", 2147483647), v1alpha1.ConditionMailboxSynced, []string{"the hub refuses"}},
	{"its slots are negative", rootLie("slots", -5), v1alpha1.ConditionMailboxSynced, []string{"the hub refuses"}},
	{"its slots are over its budget", rootLie("slots", 256), v1alpha1.ConditionWithinBudget, []string{"256"}},
	{"its version is 100 KiB", rootLie("agentVersion", strings.Repeat("v", 100<<10)), v1alpha1.ConditionMailboxSynced, []string{"the hub refuses"}},
	{"it has 100 conditions", func(o object) {
		var all []object
		for range 100 {
			all = append(all, object{"type": "T", "status": "True", "reason": "R", "message": "", "lastTransitionTime": time.Now().UTC().Format(time.RFC3339)})
		}
		o["root"].(object)["conditions"] = all
	}, v1alpha1.ConditionMailboxSynced, []string{"the hub refuses"}},
	{"it has an activity beside its root", func(o object) {
		o["activity"] = object{"observedAt": "2026-01-01T10:00:00Z", "bootID": "scripted", "active": []string{"", "\x1b[2J / / /", strings.Repeat("x ", 250)}}
	}, v1alpha1.ConditionMailboxSynced, []string{"the hub refuses"}},
	{"its activity is from yesterday", func(o object) { o["activity"] = object{"observedAt": "yesterday", "bootID": ""} }, v1alpha1.ConditionReachable, []string{"of no use"}},
	{"its activity is a number", func(o object) { o["activity"] = 7 }, v1alpha1.ConditionReachable, []string{"of no use"}},
	{"it lists pages that are not there", rootLie("pages", []object{{"name": "ghost", "sequence": 1, "images": 3}}), v1alpha1.ConditionReportComplete, []string{"ghost"}},
	{"it lists 300 pages", func(o object) {
		var all []object
		for n := range 300 {
			all = append(all, object{"name": pageMetadata(n)["name"], "sequence": 1, "images": 1})
		}
		o["root"].(object)["pages"] = all
	}, v1alpha1.ConditionMailboxSynced, []string{"lists more than 256 pages"}},
}

func rootLie(field string, value any) func(object) {
	return func(o object) { o["root"].(object)[field] = value }
}

// allCases generates the cases from the tables.
func allCases() (all []*hostileCase) {
	for _, a := range answers {
		for _, on := range a.on {
			condition := v1alpha1.ConditionReachable
			if on.writes() && !a.limit {
				condition = v1alpha1.ConditionMailboxSynced
			}
			all = append(all, &hostileCase{name: on.name + " gets " + a.name, on: on, answer: a.fault, condition: condition, want: a.want})
		}
	}
	for _, s := range servers {
		all = append(all, &hostileCase{name: "server " + s.name, listen: s.listen, condition: v1alpha1.ConditionReachable, want: s.want})
	}
	for _, l := range lies {
		all = append(all, &hostileCase{name: "report: " + l.name, lie: l.lie, condition: l.condition, want: l.want})
	}
	return all
}
