//go:build linux

package hostilemember_test

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pelotech/ot-fleet/api/v1alpha1"
)

type object = map[string]any

// scriptedCluster is an API server with nothing but a mailbox, and an agent that acknowledges
// every plan at once.
type scriptedCluster struct {
	uid string

	mu       sync.Mutex
	version  int
	objects  map[string]map[string]object // by resource and name
	changed  chan struct{}                // closed and replaced with every change
	history  []change
	sequence int64
	pages    []object // of the report
}

// change is one event of a watch.
type change struct {
	version            int
	resource, kindOfIt string
	event              string
	object             object
}

const apiVersion = "pelotech.ot/v1alpha1"

var kinds = map[string]string{"clusterplans": "ClusterPlan", "transfergrants": "TransferGrant", "clusterreports": "ClusterReport"}

func newScriptedCluster(uid string) *scriptedCluster {
	c := &scriptedCluster{uid: uid, objects: map[string]map[string]object{}, changed: make(chan struct{})}
	for resource := range kinds {
		c.objects[resource] = map[string]object{}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reportLocked(nil)
	return c
}

// heartbeat writes the report anew.
func (c *scriptedCluster) heartbeat() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.reportLocked(c.objects["clusterplans"]["default"])
}

// reportLocked writes the report of an agent that has acknowledged a plan; nil for none.
func (c *scriptedCluster) reportLocked(plan object) {
	c.sequence = max(c.sequence+1, time.Now().UnixMilli())
	root := object{
		"observedAt": time.Now().UTC().Format(time.RFC3339), "heartbeatSeconds": 20, "bootID": "scripted", "agentVersion": "scripted",
		"budget": 2, "slots": 0, "images": 0, "references": 0,
		"transfers": object{"limited": true, "safe": 0, "wanted": 1, "nonce": fmt.Sprintf("scripted/%d", c.sequence)},
	}
	if c.pages != nil {
		root["pages"], root["images"] = c.pages, v1alpha1.MaxReportedImages*len(c.pages)
	}
	if plan != nil {
		spec := plan["spec"].(object)
		version := object{"epoch": spec["epoch"], "sequence": spec["sequence"]}
		root["plan"], root["answeredPlan"] = version, version
		root["policy"], root["planPolicy"], root["planPolicySource"] = spec["policy"], spec["policy"], spec["policySource"]
	}
	c.storeLocked("clusterreports", object{
		"apiVersion": apiVersion, "kind": "ClusterReport", "metadata": object{"namespace": agentNamespace, "name": "default"},
		"clusterUID": c.uid, "sequence": c.sequence, "root": root,
	})
}

// storeLocked creates or replaces an object.
func (c *scriptedCluster) storeLocked(resource string, o object) object {
	o = copyObject(o)
	metadata := o["metadata"].(object)
	name := metadata["name"].(string)
	event := "ADDED"
	metadata["uid"], metadata["creationTimestamp"] = fmt.Sprintf("%s-%s-%d", resource, name, c.version), time.Now().UTC().Format(time.RFC3339)
	if old := c.objects[resource][name]; old != nil {
		event = "MODIFIED"
		metadata["uid"], metadata["creationTimestamp"] = old["metadata"].(object)["uid"], old["metadata"].(object)["creationTimestamp"]
	}
	c.version++
	metadata["resourceVersion"], metadata["generation"] = strconv.Itoa(1000+c.version), c.version
	c.objects[resource][name] = o
	c.recordLocked(resource, event, o)
	return o
}

func (c *scriptedCluster) recordLocked(resource, event string, o object) {
	c.history = append(c.history, change{version: 1000 + c.version, resource: resource, kindOfIt: kinds[resource], event: event, object: o})
	if len(c.history) > 100 {
		c.history = slices.Clone(c.history[50:])
	}
	close(c.changed)
	c.changed = make(chan struct{})
}

func copyObject(o object) object {
	text, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	var copied object
	if err := json.Unmarshal(text, &copied); err != nil {
		panic(err)
	}
	return copied
}

// operation is what a request asks for.
type operation struct {
	// verb is get, list, watch, create, update or delete.
	verb, resource, name string
}

func parseOperation(r *http.Request) operation {
	var op operation
	rest := strings.TrimPrefix(r.URL.Path, "/apis/"+apiVersion+"/")
	rest = strings.TrimPrefix(rest, "namespaces/"+agentNamespace+"/")
	op.resource, op.name, _ = strings.Cut(rest, "/")
	switch r.Method {
	case http.MethodGet:
		op.verb = "list"
		if op.name != "" {
			op.verb = "get"
		} else if r.URL.Query().Get("watch") != "" {
			op.verb = "watch"
		}
	case http.MethodPost:
		op.verb = "create"
	case http.MethodPut, http.MethodPatch:
		op.verb = "update"
	default:
		op.verb = "delete"
	}
	return op
}

// answerRequest answers honestly, but for what lie makes of each ClusterReport; nil for no lie.
func (c *scriptedCluster) answerRequest(w http.ResponseWriter, r *http.Request, lie func(object)) {
	op := parseOperation(r)
	tell := func(o object) object {
		if lie == nil || op.resource != "clusterreports" {
			return o
		}
		o = copyObject(o)
		lie(o)
		return o
	}
	if _, known := kinds[op.resource]; !known {
		writeStatus(w, http.StatusNotFound, "NotFound", "there is only a mailbox")
		return
	}
	switch op.verb {
	case "watch":
		c.serveWatch(w, r, op, tell)
	case "list":
		c.mu.Lock()
		var items []object
		for _, name := range slices.Sorted(maps.Keys(c.objects[op.resource])) {
			items = append(items, tell(c.objects[op.resource][name]))
		}
		version := 1000 + c.version
		c.mu.Unlock()
		writeJSON(w, http.StatusOK, object{"apiVersion": apiVersion, "kind": kinds[op.resource] + "List", "metadata": object{"resourceVersion": strconv.Itoa(version)}, "items": items})
	case "get":
		c.mu.Lock()
		o := c.objects[op.resource][op.name]
		c.mu.Unlock()
		if o == nil {
			writeStatus(w, http.StatusNotFound, "NotFound", "it does not exist")
			return
		}
		writeJSON(w, http.StatusOK, tell(o))
	default:
		c.serveWrite(w, r, op)
	}
}

func (c *scriptedCluster) serveWrite(w http.ResponseWriter, r *http.Request, op operation) {
	var o object
	text, err := io.ReadAll(r.Body)
	if err == nil && op.verb != "delete" {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		writeStatus(w, http.StatusBadRequest, "BadRequest", "no JSON")
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if op.verb == "delete" {
		if old := c.objects[op.resource][op.name]; old != nil {
			delete(c.objects[op.resource], op.name)
			c.version++
			c.recordLocked(op.resource, "DELETED", old)
		}
		writeJSON(w, http.StatusOK, object{"apiVersion": "v1", "kind": "Status", "status": "Success"})
		return
	}
	o["apiVersion"], o["kind"] = apiVersion, kinds[op.resource]
	stored := c.storeLocked(op.resource, o)
	if op.resource == "clusterplans" {
		c.reportLocked(stored)
	}
	writeJSON(w, http.StatusOK, stored)
}

func (c *scriptedCluster) serveWatch(w http.ResponseWriter, r *http.Request, op operation, tell func(object) object) {
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	w.Header().Set("Content-Type", "application/json")
	for {
		_ = http.NewResponseController(w).Flush()
		c.mu.Lock()
		changed, history := c.changed, c.history
		c.mu.Unlock()
		for _, x := range history {
			if x.version > from && x.resource == op.resource {
				if json.NewEncoder(w).Encode(object{"type": x.event, "object": tell(x.object)}) != nil {
					return
				}
			}
			from = max(from, x.version)
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case <-changed:
		}
	}
}

func writeJSON(w http.ResponseWriter, code int, o any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o)
}

func writeStatus(w http.ResponseWriter, code int, reason, message string) {
	writeJSON(w, code, object{"apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message})
}
