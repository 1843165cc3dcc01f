//go:build linux

package hostilemember_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"github.com/pelotech/ot-fleet/api/apitest"
)

// A fault is a wrong answer to a request.
type fault = http.HandlerFunc

const chunkSize = 32 << 10

// writeForever writes a text until the hub has enough.
func writeForever(w io.Writer, text string) {
	chunk := []byte(strings.Repeat(text, 1+chunkSize/len(text)))
	for {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

func setJSON(w http.ResponseWriter) { w.Header().Set("Content-Type", "application/json") }

// endless begins with begin and repeats a text without end.
func endless(begin, repeated string) fault {
	return func(w http.ResponseWriter, _ *http.Request) {
		setJSON(w)
		_, _ = io.WriteString(w, begin)
		writeForever(w, repeated)
	}
}

// announcedHuge announces a terabyte.
func announcedHuge(w http.ResponseWriter, _ *http.Request) {
	setJSON(w)
	w.Header().Set("Content-Length", "1099511627776")
	writeForever(w, " ")
}

// gzipBomb is a gigabyte of JSON, compressed to a megabyte.
func gzipBomb(w http.ResponseWriter, _ *http.Request) {
	setJSON(w)
	w.Header().Set("Content-Encoding", "gzip")
	_, _ = w.Write(bomb())
}

var bomb = sync.OnceValue(func() []byte {
	return apitest.CompressPadded(`{"apiVersion":"`+apiVersion+`","kind":"ClusterReport","clusterUID":"`, 'a', 1<<10, "")
})

// answerWith answers with a code, type and text.
func answerWith(code int, contentType, text string) fault {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, text)
	}
}

func json200(text string) fault { return answerWith(http.StatusOK, "application/json", text) }

const page = "<html><body><h1>It works!</h1></body></html>"

// failing answers with a Status, as API servers do, and absurd requests to wait.
func failing(code int, reason string) fault {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "2147483647")
		writeStatus(w, code, reason, "no "+strings.Repeat("x", 4<<10))
	}
}

// headersOf answers with headers of so many chunks.
func headersOf(chunks int) fault {
	return func(w http.ResponseWriter, _ *http.Request) {
		for n := range chunks {
			w.Header().Set("X-Large-"+strconv.Itoa(n), strings.Repeat("x", chunkSize))
		}
		writeJSON(w, http.StatusOK, object{})
	}
}

// endlessInformation sends responses of class 1xx without end.
func endlessInformation(w http.ResponseWriter, r *http.Request) {
	for r.Context().Err() == nil {
		w.Header().Set("Link", strings.Repeat("x", 8<<10))
		w.WriteHeader(http.StatusEarlyHints)
	}
}

// noAnswer never begins to answer.
func noAnswer(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// stalled begins to answer and goes on no more.
func stalled(w http.ResponseWriter, r *http.Request) {
	setJSON(w)
	_, _ = io.WriteString(w, `{"apiVersion":"`+apiVersion+`","kind":"Cl`)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
}

// broken ends in the middle of an answer.
func broken(w http.ResponseWriter, _ *http.Request) {
	setJSON(w)
	w.Header().Set("Content-Length", "4096")
	_, _ = io.WriteString(w, `{"apiVersion":"`+apiVersion+`","kind":"Cl`)
	_ = http.NewResponseController(w).Flush()
	panic(http.ErrAbortHandler)
}

// redirected leads to another address, which must not be asked.
func redirected(to func() string) fault {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Location", to()+r.URL.Path)
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
}

// reportWith is an honest-looking report but for its metadata.
func reportWith(metadata object) object {
	return object{
		"apiVersion": apiVersion, "kind": "ClusterReport", "metadata": metadata, "clusterUID": "scripted", "sequence": 1, "page": object{"images": []object{}},
	}
}

func pageMetadata(n int) object {
	return object{"namespace": agentNamespace, "name": fmt.Sprintf("page-%d", n), "uid": fmt.Sprintf("uid-%d", n), "resourceVersion": "1"}
}

// listOf answers lists of every kind with reports.
func listOf(item func(n int) object, count int, continued string) fault {
	return func(w http.ResponseWriter, r *http.Request) {
		kind := kinds[parseOperation(r).resource]
		setJSON(w)
		metadata, _ := json.Marshal(object{"resourceVersion": "1", "continue": continued})
		_, _ = fmt.Fprintf(w, `{"apiVersion":%q,"kind":%q,"metadata":%s,"items":[`, apiVersion, kind+"List", metadata)
		for n := range count {
			o := item(n)
			o["kind"] = kind
			text, _ := json.Marshal(o)
			if n > 0 {
				text = append([]byte(","), text...)
			}
			if _, err := w.Write(text); err != nil {
				return
			}
		}
		_, _ = io.WriteString(w, "]}")
	}
}

// endlessPages answers each list with one more page of other objects.
func endlessPages() fault {
	var mu sync.Mutex
	n := 0
	return func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		n += 8
		first := n
		mu.Unlock()
		listOf(func(i int) object { return reportWith(pageMetadata(first + i)) }, 8, "more")(w, r)
	}
}

func emptyPages(w http.ResponseWriter, r *http.Request) {
	listOf(func(int) object { return nil }, 0, "more")(w, r)
}

// writeEvent writes an event about an object of the watched kind.
func writeEvent(w io.Writer, r *http.Request, text string) error {
	_, err := io.WriteString(w, strings.ReplaceAll(text, `"ClusterReport"`, strconv.Quote(kinds[parseOperation(r).resource]))+"\n")
	return err
}

// events answers watches with the same events; forever repeats them without end.
func events(forever bool, texts ...string) fault {
	return func(w http.ResponseWriter, r *http.Request) {
		setJSON(w)
		_ = http.NewResponseController(w).Flush()
		for {
			for _, text := range texts {
				if writeEvent(w, r, text) != nil {
					return
				}
			}
			_ = http.NewResponseController(w).Flush()
			if !forever {
				<-r.Context().Done()
				return
			}
		}
	}
}

// endedWatch answers watches and ends them after some events.
func endedWatch(texts ...string) fault {
	return func(w http.ResponseWriter, r *http.Request) {
		setJSON(w)
		for _, text := range texts {
			_ = writeEvent(w, r, text)
		}
	}
}

func event(kind string, o object) string {
	text, _ := json.Marshal(object{"type": kind, "object": o})
	return string(text)
}

// resetConnection ends a connection by RST.
func resetConnection(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}
