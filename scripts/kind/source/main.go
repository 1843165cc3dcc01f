// Command source serves disk images to the clusters of kind-up, and counts what
// is asked of it:
//
//	GET /…/<file>                  the file
//	GET /slow/<seconds>/…/<file>   so slowly that all of it takes that long
//	GET /cut/…/<file>              the first half; where the second begins, the connection breaks
//	GET /status/<code>/…           that status
//	GET /counts                    requests and bytes per path, as JSON
//	DELETE /counts                 forgets them
//
// What stands for … means nothing: it gives what asks a path, and counts, of its own.
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

// count is what was asked of one path. A GET without a range is one for all of
// the file, whether or not all of it was taken.
type count struct {
	Heads, Gets, Ranges, Bytes int64
}

type source struct {
	files  string
	mu     sync.Mutex
	counts map[string]*count
}

func newSource(files string) http.Handler {
	s := &source{files: files, counts: map[string]*count{}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /counts", s.tell)
	mux.HandleFunc("DELETE /counts", s.forget)
	mux.HandleFunc("GET /status/{code}/", s.counted(refuse))
	mux.HandleFunc("GET /cut/{path...}", s.counted(s.cut))
	mux.HandleFunc("GET /slow/{seconds}/{path...}", s.counted(s.slow))
	mux.HandleFunc("GET /{path...}", s.counted(s.serve))
	return mux
}

func (s *source) tell(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(s.counts); err != nil {
		log.Print(err)
	}
}

func (s *source) forget(http.ResponseWriter, *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.counts)
}

func (s *source) counted(next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		log.Printf("%s %s %s %s", r.RemoteAddr, r.Method, r.URL.Path, r.Header.Get("Range"))
		s.add(r.URL.Path, func(c *count) {
			switch {
			case r.Method == http.MethodHead:
				c.Heads++
			case r.Header.Get("Range") != "":
				c.Ranges++
			default:
				c.Gets++
			}
		})
		next(&counter{ResponseWriter: w, add: func(n int) {
			s.add(r.URL.Path, func(c *count) { c.Bytes += int64(n) })
		}}, r)
	}
}

func (s *source) add(name string, change func(*count)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.counts[name] == nil {
		s.counts[name] = &count{}
	}
	change(s.counts[name])
}

// file is the one that a request is for.
func (s *source) file(r *http.Request) string {
	return path.Join(s.files, path.Base(r.PathValue("path")))
}

func (s *source) serve(w http.ResponseWriter, r *http.Request) { http.ServeFile(w, r, s.file(r)) }

// slow serves a file at the pace at which all of it takes so many seconds.
func (s *source) slow(w http.ResponseWriter, r *http.Request) {
	seconds, err := strconv.Atoi(r.PathValue("seconds"))
	info, missing := os.Stat(s.file(r))
	if err != nil || seconds < 1 || missing != nil {
		http.NotFound(w, r)
		return
	}
	pace := time.Duration(seconds) * time.Second / time.Duration(max(info.Size()/chunk, 1))
	http.ServeFile(&slowly{ResponseWriter: w, done: r.Context().Done(), pace: pace}, r, s.file(r))
}

// cut promises what is asked for, and breaks off at the middle of the file.
func (s *source) cut(w http.ResponseWriter, r *http.Request) {
	file, err := os.Open(s.file(r))
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
	// Without a type given, it would be guessed from bytes that are counted as cut.
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", info.ModTime(), &torn{File: file, at: info.Size() / 2})
}

var errTorn = errors.New("the connection breaks here")

// torn cannot be read from some byte on. Whoever has promised more cannot but break off.
type torn struct {
	*os.File
	at int64
}

func (f *torn) Read(p []byte) (int, error) {
	now, err := f.Seek(0, io.SeekCurrent)
	if err != nil {
		return 0, err
	}
	if now >= f.at {
		return 0, errTorn
	}
	return f.File.Read(p[:min(int64(len(p)), f.at-now)])
}

func refuse(w http.ResponseWriter, r *http.Request) {
	code, err := strconv.Atoi(r.PathValue("code"))
	if err != nil || code < 400 || code > 599 {
		code = http.StatusNotFound
	}
	http.Error(w, strings.ToLower(http.StatusText(code)), code)
}

// chunk is what is written at a time where it is to go slowly.
const chunk = 64 << 10

// slowly writes a chunk, and waits.
type slowly struct {
	http.ResponseWriter
	done <-chan struct{}
	pace time.Duration
}

func (s *slowly) Write(p []byte) (written int, err error) {
	for len(p) > 0 {
		n, err := s.ResponseWriter.Write(p[:min(len(p), chunk)])
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

// counter counts the bytes that were written.
type counter struct {
	http.ResponseWriter
	add func(int)
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.add(n)
	return n, err
}

func (c *counter) Unwrap() http.ResponseWriter { return c.ResponseWriter }
