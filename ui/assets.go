package ui

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/pelotech/ot-fleet/api/readapi"
)

//go:embed all:dist
var dist embed.FS

// Assets returns the files of the app, as Vite has built them.
func Assets() fs.FS {
	files, err := fs.Sub(dist, "dist")
	if err != nil {
		panic(err) // dist is embedded
	}
	return files
}

// asset is a file of the app.
type asset struct {
	contentType, etag string
	// immutable: its name changes with its content.
	immutable  bool
	body       []byte
	compressed []byte // nil where that is not smaller
}

// embedded are the files of the app, compressed once.
var embedded = sync.OnceValue(func() map[string]*asset {
	files, err := loadAssets(Assets())
	if err != nil {
		panic(err) // it is embedded
	}
	return files
})

// contentTypes are those of the files that Vite writes. Those of the system are not asked: they
// differ.
var contentTypes = map[string]string{
	".html": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml",
	".json": "application/json", ".woff2": "font/woff2", ".png": "image/png", ".ico": "image/x-icon", ".txt": "text/plain; charset=utf-8",
	".webmanifest": "application/manifest+json",
}

func loadAssets(from fs.FS) (map[string]*asset, error) {
	files := map[string]*asset{}
	err := fs.WalkDir(from, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		body, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(body)
		a := &asset{contentType: contentTypes[path.Ext(name)], etag: hex.EncodeToString(sum[:16]), immutable: strings.HasPrefix(name, "assets/"), body: body}
		if a.contentType == "" {
			a.contentType = "application/octet-stream"
		}
		if a.compressed, err = compress(body); err != nil {
			return fmt.Errorf("compressing %s: %w", name, err)
		}
		files["/"+name] = a
		return nil
	})
	return files, err
}

func compress(body []byte) ([]byte, error) {
	var compressed bytes.Buffer
	w, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := w.Write(body); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil || compressed.Len() >= len(body) {
		return nil, err
	}
	return compressed.Bytes(), nil
}

// serveAsset serves a file of the app. The app itself is what answers all paths of pages.
func serveAsset(w http.ResponseWriter, request *http.Request) {
	files := embedded()
	if !isRead(request.Method) {
		w.Header().Set("Allow", "GET, HEAD")
		WriteError(w, newRefusal(http.StatusMethodNotAllowed, "a page is read: use GET"))
		return
	}
	file, found := files[request.URL.Path]
	switch {
	case found:
	case isPage(request):
		file = files["/index.html"]
	default:
		w.Header().Set("Cache-Control", "no-store")
		WriteError(w, newRefusal(http.StatusNotFound, "the dashboard has no such file"))
		return
	}
	file.writeAnswer(w, request)
}

// isPage reports whether a path is one of the app's pages. Names in it may have dots, as those
// of files: then a browser says that it opens a page.
func isPage(request *http.Request) bool {
	if strings.HasPrefix(request.URL.Path, "/assets/") {
		return false
	}
	return !strings.Contains(request.URL.Path, ".") || strings.Contains(request.Header.Get("Accept"), "text/html")
}

func (a *asset) writeAnswer(w http.ResponseWriter, request *http.Request) {
	body, etag, header := a.body, `"`+a.etag+`"`, w.Header()
	header.Set("Vary", "Accept-Encoding")
	if a.compressed != nil && readapi.AcceptsGzip(request.Header.Get("Accept-Encoding")) {
		body, etag = a.compressed, `"`+a.etag+`-gzip"`
		header.Set("Content-Encoding", "gzip")
	}
	header.Set("ETag", etag)
	header.Set("Cache-Control", "no-cache")
	if a.immutable {
		header.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	for known := range strings.SplitSeq(request.Header.Get("If-None-Match"), ",") {
		if strings.TrimPrefix(strings.TrimSpace(known), "W/") == etag {
			header.Del("Content-Encoding")
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	header.Set("Content-Type", a.contentType)
	header.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(http.StatusOK)
	if request.Method != http.MethodHead {
		_, _ = w.Write(body) // the caller is gone
	}
}
