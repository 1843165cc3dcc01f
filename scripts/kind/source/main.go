// Command source serves disk images to the clusters of kind-up and counts the requests:
//
//	GET /…/<file>                  the file
//	GET /slow/<seconds>/…/<file>   throttled: the whole file takes that long
//	GET /cut/…/<file>              the first half; then the connection breaks
//	GET /status/<code>/…           that status
//	GET /counts                    requests and bytes per path, as JSON
//	DELETE /counts                 resets them
//
// The segments … are ignored: they give a client its own path, with its own counts.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"io"
	"log"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	listen := flag.String("listen", ":80", "where it listens")
	files := flag.String("files", "/srv", "the directory that it serves")
	flag.Parse()
	server := &http.Server{Addr: *listen, Handler: newSource(*files), ReadHeaderTimeout: 10 * time.Second}
	log.Fatal(server.ListenAndServe())
}

// requestCounts are the requests for one path. Gets are those without a range, even if the client did
// not read the whole file.
type requestCounts struct {
	Heads, Gets, Ranges, Bytes int64
}

type countingServer struct {
	files  string
	mu     sync.Mutex
	counts map[string]*requestCounts
}

func newSource(files string) http.Handler {
	s := &countingServer{files: files, counts: map[string]*requestCounts{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /counts", s.writeCounts)
	mux.HandleFunc("DELETE /counts", s.resetCounts)
	mux.HandleFunc("GET /status/{code}/", s.withCounting(refuseRequest))
	mux.HandleFunc("GET /cut/{path...}", s.withCounting(s.serveBroken))
	mux.HandleFunc("GET /slow/{seconds}/{path...}", s.withCounting(s.serveSlowly))
	mux.HandleFunc("GET /{path...}", s.withCounting(s.serveFile))
	return mux
}

func (s *countingServer) writeCounts(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(s.counts); err != nil {
		log.Print(err)
	}
}

func (s *countingServer) resetCounts(http.ResponseWriter, *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.counts)
}

func (s *countingServer) withCounting(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s %s %s %s", r.RemoteAddr, r.Method, r.URL.Path, r.Header.Get("Range"))
		s.updateCount(r.URL.Path, func(c *requestCounts) {
			switch {
			case r.Method == http.MethodHead:
				c.Heads++
			case r.Header.Get("Range") != "":
				c.Ranges++
			default:
				c.Gets++
			}
		})
		next(&countingWriter{ResponseWriter: w, add: func(n int) {
			s.updateCount(r.URL.Path, func(c *requestCounts) { c.Bytes += int64(n) })
		}}, r)
	}
}

func (s *countingServer) updateCount(name string, change func(*requestCounts)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts[name] == nil {
		s.counts[name] = &requestCounts{}
	}
	change(s.counts[name])
}

// filePath returns the path of the requested file.
func (s *countingServer) filePath(r *http.Request) string {
	return path.Join(s.files, path.Base(r.PathValue("path")))
}

func (s *countingServer) serveFile(w http.ResponseWriter, r *http.Request) {
	http.ServeFile(w, r, s.filePath(r))
}

// serveSlowly serves a file at a pace at which all of it takes the requested seconds.
func (s *countingServer) serveSlowly(w http.ResponseWriter, r *http.Request) {
	seconds, err := strconv.Atoi(r.PathValue("seconds"))
	info, missing := os.Stat(s.filePath(r))
	if err != nil || seconds < 1 || missing != nil {
		http.NotFound(w, r)
		return
	}
	pace := time.Duration(seconds) * time.Second / time.Duration(max(info.Size()/chunkSize, 1))
	http.ServeFile(&pacedWriter{ResponseWriter: w, done: r.Context().Done(), pace: pace}, r, s.filePath(r))
}

// serveBroken announces the requested range and breaks off at the middle of the file.
func (s *countingServer) serveBroken(w http.ResponseWriter, r *http.Request) {
	file, err := os.Open(s.filePath(r))
	if err != nil {
		http.NotFound(w, r)
		return
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	// Without a type, ServeContent would read bytes to guess it, which would be counted.
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", info.ModTime(), &brokenFile{File: file, at: info.Size() / 2})
}

var errBroken = errors.New("the connection breaks here")

// brokenFile cannot be read beyond a byte, so that ServeContent has to break off.
type brokenFile struct {
	*os.File
	at int64
}

func (f *brokenFile) Read(p []byte) (int, error) {
	now, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	if now >= f.at {
		return 0, errBroken
	}
	return f.File.Read(p[:min(int64(len(p)), f.at-now)])
}

func refuseRequest(w http.ResponseWriter, r *http.Request) {
	code, err := strconv.Atoi(r.PathValue("code"))
	if err != nil || code < 400 || code > 599 {
		code = http.StatusNotFound
	}
	http.Error(w, strings.ToLower(http.StatusText(code)), code)
}

// chunkSize is how much a pacedWriter writes at a time.
const chunkSize = 64 << 10

// pacedWriter waits after each chunk.
type pacedWriter struct {
	http.ResponseWriter
	done <-chan struct{}
	pace time.Duration
}

func (s *pacedWriter) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		n, err := s.ResponseWriter.Write(p[:min(len(p), chunkSize)])
		written += n
		if err != nil {
			return written, err
		}
		p = p[n:]
		select {
		case <-s.done:
			return written, http.ErrAbortHandler
		case <-time.After(s.pace):
		}
	}
	return written, nil
}

// countingWriter counts the written bytes.
type countingWriter struct {
	http.ResponseWriter
	add func(int)
}

func (c *countingWriter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.add(n)
	return n, err
}

func (c *countingWriter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
