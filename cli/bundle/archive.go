package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/pelotech/ot-fleet/cli/render"
)

// Bounds of an archive.
const (
	// MaxFileBytes bounds one file; of longer ones the end is kept, where the newest lines are.
	MaxFileBytes = 8 << 20
	// MaxBytes bounds all files together. Those that do not fit are listed in the manifest.
	MaxBytes = 64 << 20
)

// ManifestName is the file that lists all others.
const ManifestName = "MANIFEST.txt"

// File of an archive.
type File struct {
	Path string `json:"path"`
	// Bytes of Content before compression.
	Bytes   int    `json:"bytes"`
	Content []byte `json:"-"`
	// Redacted is how many values of it were redacted.
	Redacted int `json:"redacted"`
	// Cut: only its end is there.
	Cut bool `json:"cut,omitempty"`
}

// Unread is what could not be read.
type Unread struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Bundle is what an archive has, or would have.
type Bundle struct {
	render.Envelope
	// Archive is the name of the file that was written; empty with --list.
	Archive    string   `json:"archive,omitempty"`
	Files      []File   `json:"files"`
	TotalBytes int      `json:"totalBytes"`
	Redacted   int      `json:"redacted"`
	Unread     []Unread `json:"unread,omitempty"`
	// Omitted are files that would exceed the bounds.
	Omitted []string `json:"omitted,omitempty"`
}

// New returns an empty Bundle.
func New() *Bundle { return &Bundle{Envelope: render.NewEnvelope("SupportBundle")} }

// Add adds a file; Close orders and bounds all of them.
func (b *Bundle) Add(path string, content []byte, redacted int) {
	f := File{Path: path, Content: content, Redacted: redacted}
	if over := len(content) - MaxFileBytes; over > 0 {
		f.Content, f.Cut = content[over:], true
		if end := bytes.IndexByte(f.Content, '\n'); end >= 0 {
			f.Content = f.Content[end+1:]
		}
	}
	f.Bytes = len(f.Content)
	b.Files = append(b.Files, f)
}

// Close orders the files by their paths, and drops those beyond the bounds.
func (b *Bundle) Close() {
	slices.SortFunc(b.Files, func(x, y File) int { return strings.Compare(x.Path, y.Path) })
	slices.SortFunc(b.Unread, func(x, y Unread) int { return cmp.Or(strings.Compare(x.What, y.What), strings.Compare(x.Why, y.Why)) })
	kept := b.Files[:0]
	b.TotalBytes, b.Redacted, b.Omitted = 0, 0, nil
	for _, f := range b.Files {
		if b.TotalBytes+f.Bytes > MaxBytes {
			b.Omitted = append(b.Omitted, f.Path)
			continue
		}
		b.TotalBytes += f.Bytes
		b.Redacted += f.Redacted
		kept = append(kept, f)
	}
	b.Files = kept
}

// Manifest lists every file with its size, its hash and how much of it was redacted.
func (b *Bundle) Manifest() []byte {
	var text bytes.Buffer
	fmt.Fprintf(&text, "# bytes  sha256    redacted  file\n")
	for _, f := range b.Files {
		sum := sha256.Sum256(f.Content)
		note := ""
		if f.Cut {
			note = "  (its end only)"
		}
		fmt.Fprintf(&text, "%7d  %s  %8d  %s%s\n", f.Bytes, hex.EncodeToString(sum[:hashBytes]), f.Redacted, f.Path, note)
	}
	fmt.Fprintf(&text, "\n%d files, %d bytes, %d values redacted\n", len(b.Files), b.TotalBytes, b.Redacted)
	for _, path := range b.Omitted {
		fmt.Fprintf(&text, "omitted, the bundle is full: %s\n", path)
	}
	for _, u := range b.Unread {
		fmt.Fprintf(&text, "not read: %s: %s\n", u.What, u.Why)
	}
	return text.Bytes()
}

// WriteArchive writes a tar.gz below one folder. It depends on nothing but the content: no
// time, no user.
func (b *Bundle) WriteArchive(to io.Writer, folder string) error {
	compressed := gzip.NewWriter(to)
	archive := tar.NewWriter(compressed)
	write := func(path string, content []byte) error {
		header := &tar.Header{Name: folder + "/" + path, Mode: 0o600, Size: int64(len(content)), ModTime: time.Unix(0, 0), Format: tar.FormatPAX}
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := archive.Write(content)
		return err
	}
	if err := write(ManifestName, b.Manifest()); err != nil {
		return fmt.Errorf("writing the archive: %w", err)
	}
	for _, f := range b.Files {
		if err := write(f.Path, f.Content); err != nil {
			return fmt.Errorf("writing %s to the archive: %w", f.Path, err)
		}
	}
	if err := archive.Close(); err != nil {
		return fmt.Errorf("writing the archive: %w", err)
	}
	if err := compressed.Close(); err != nil {
		return fmt.Errorf("writing the archive: %w", err)
	}
	return nil
}

// Names are the files in the archive.
func (b *Bundle) Names() []string {
	names := make([]string, len(b.Files))
	for i := range b.Files {
		names[i] = "file/" + b.Files[i].Path
	}
	return names
}

// Draw draws what is in the archive.
func (b *Bundle) Draw(p *render.Page) {
	what := "would hold"
	if b.Archive != "" {
		what = "holds"
	}
	p.Line(render.Bold("SUPPORT BUNDLE"), render.Text(" %s %s, %s, %d values redacted", what, render.Count(len(b.Files), "file"), render.Bytes(int64(b.TotalBytes)), b.Redacted))
	p.Gap()
	t := p.Table(render.Column{Title: "FILE", Elastic: true, Min: 16}, render.Column{Title: "SIZE", Right: true}, render.Column{Title: "REDACTED", Right: true, Drop: 1})
	for _, f := range b.Files {
		t.Row(render.Cells(f.Path, render.Bytes(int64(f.Bytes)), fmt.Sprint(f.Redacted))...)
	}
	for _, path := range b.Omitted {
		p.Lines(render.Attention.With("omitted, the bundle is full: %s", path))
	}
	for _, u := range b.Unread {
		p.Lines(render.Unknown.With("not read: %s: %s", u.What, u.Why))
	}
	if b.Archive != "" {
		p.Gap()
		p.Lines(render.Done.With("%s", b.Archive))
	}
}
