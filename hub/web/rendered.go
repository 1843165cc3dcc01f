package web

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/pelotech/ot-fleet/api/readapi"
)

const (
	// freshFor is how long an answer is sent again whatever changed meanwhile. Invariant: it is
	// no longer than eventInterval, by which events lag behind what they are about.
	freshFor = eventInterval
	// maxRendering and maxReading bound how many answers are computed at a time: those from
	// memory, and those that read objects live. maxGrouping bounds those that read all pages of
	// a prune report, so that they do not hold up the others.
	maxRendering = 2
	maxReading   = 4
	maxGrouping  = 1
	// rememberFor bounds how old a remembered answer may be: estimates and stale reports
	// depend on the time.
	rememberFor = 5 * time.Second
	// Bounds of what is remembered.
	maxRemembered      = 64
	maxRememberedBytes = 16 << 20
	maxRememberedKey   = 4096
)

// renderedAnswer is an answer as it is sent.
type renderedAnswer struct {
	body []byte
	// gzipped is the body compressed; nil until somebody asks for that.
	gzipped []byte
	etag    string
	// seq of Changes before it was rendered, and when that was.
	seq uint64
	at  time.Time
}

func (r renderedAnswer) size() int { return len(r.body) + len(r.gzipped) }

// renderedAnswers remembers the last answers by path and query: many viewers ask for the
// same, and most often nothing has changed. Few are rendered at a time, so that viewers cannot
// take all of the CPU.
type renderedAnswers struct {
	mu      sync.Mutex
	answers map[string]renderedAnswer
	order   []string
	bytes   int
	// rendering, reading and grouping have an entry for each answer that is being computed.
	rendering, reading, grouping chan struct{}
}

// render returns the answer of an endpoint, or a file.
func (a *API) render(e endpoint, request *http.Request) (renderedAnswer, *download, error) {
	key := request.URL.Path + "?" + request.URL.RawQuery
	compressed := readapi.AcceptsGzip(request.Header.Get("Accept-Encoding"))
	remembered := e.remembered && a.Changes != nil && len(key) <= maxRememberedKey
	if remembered {
		if answer, current := a.rendered.get(key, a.Changes.Seq()); current && !answer.needsCompression(compressed) {
			return answer, nil, nil
		}
	}
	busy := a.rendered.limitOf(e, request.URL.Path)
	select {
	case busy <- struct{}{}:
	case <-request.Context().Done():
		return renderedAnswer{}, nil, request.Context().Err()
	}
	defer func() { <-busy }()
	seq := uint64(0)
	if remembered {
		seq = a.Changes.Seq()
		if answer, current := a.rendered.get(key, seq); current {
			if answer.needsCompression(compressed) {
				answer.compress()
				a.rendered.add(key, answer)
			}
			return answer, nil, nil
		}
	}
	answer, file, err := a.renderAnew(e, request, seq)
	if err != nil || file != nil {
		return answer, file, err
	}
	if answer.needsCompression(compressed) {
		answer.compress()
	}
	if remembered {
		a.rendered.add(key, answer)
	}
	return answer, nil, nil
}

func (a *API) renderAnew(e endpoint, request *http.Request, seq uint64) (answer renderedAnswer, file *download, err error) {
	at := time.Now()
	body, err := e.answer(request)
	if err != nil {
		return answer, nil, err
	}
	if f, isFile := body.(download); isFile {
		return answer, &f, nil
	}
	text, err := json.Marshal(body)
	if err != nil {
		return answer, nil, fmt.Errorf("encoding the answer: %w", err)
	}
	sum := sha256.Sum256(text)
	return renderedAnswer{body: append(text, '\n'), etag: strconv.Quote(hex.EncodeToString(sum[:12])), seq: seq, at: at}, nil, nil
}

func (r *renderedAnswers) limitOf(e endpoint, path string) chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rendering == nil {
		r.rendering, r.reading, r.grouping = make(chan struct{}, maxRendering), make(chan struct{}, maxReading), make(chan struct{}, maxGrouping)
	}
	switch {
	case path == pruneGroupsPath:
		return r.grouping
	case e.reads:
		return r.reading
	default:
		return r.rendering
	}
}

func (r *renderedAnswers) get(key string, seq uint64) (renderedAnswer, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	answer, known := r.answers[key]
	age := time.Since(answer.at)
	return answer, known && (age < freshFor || answer.seq == seq && age < rememberFor)
}

func (r *renderedAnswers) add(key string, answer renderedAnswer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.answers == nil {
		r.answers = map[string]renderedAnswer{}
	}
	if before, known := r.answers[key]; known {
		r.bytes -= before.size()
	} else {
		r.order = append(r.order, key)
	}
	r.answers[key] = answer
	r.bytes += answer.size()
	for len(r.order) > maxRemembered || r.bytes > maxRememberedBytes {
		r.bytes -= r.answers[r.order[0]].size()
		delete(r.answers, r.order[0])
		r.order = r.order[1:]
	}
}

func writeAnswer(w http.ResponseWriter, request *http.Request, answer renderedAnswer) {
	body, etag := answer.body, answer.etag
	w.Header().Set("Vary", "Accept-Encoding")
	if answer.gzipped != nil && readapi.AcceptsGzip(request.Header.Get("Accept-Encoding")) {
		// Other bytes of the same answer: its tag is a weak one.
		body, etag = answer.gzipped, "W/"+etag
		w.Header().Set("Content-Encoding", "gzip")
	}
	w.Header().Set("ETag", etag)
	w.Header().Set("Cache-Control", "private, no-cache")
	if matchesETag(request.Header.Get("If-None-Match"), answer.etag) {
		w.Header().Del("Content-Encoding")
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	if _, err := w.Write(body); err != nil {
		logUnsent(request, err)
	}
}

// matchesETag compares weakly: a proxy that compresses answers weakens their tags.
func matchesETag(header, etag string) bool {
	for candidate := range strings.SplitSeq(header, ",") {
		if candidate = strings.TrimPrefix(strings.TrimSpace(candidate), "W/"); candidate == etag || candidate == "*" {
			return true
		}
	}
	return false
}
