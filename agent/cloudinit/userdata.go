package cloudinit

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"unicode/utf8"
)

// mergeType says how cloud-init merges the agent's part into what the author's
// says: what both set stays as the author has it, and of lists the agent's items
// stand first.
const mergeType = "list(prepend)+dict(no_replace,recurse_list)+str()"

// combineUserData puts the parts of agent and author into one archive. The agent's
// comes last: cloud-init merges a part by that part's own instructions, and the
// author's can have a form that carries none.
func combineUserData(agents, author []byte) ([]byte, error) {
	author, err := decompressUserData(author)
	if err != nil || len(author) == 0 {
		return agents, err
	}
	sum := sha256.Sum256(author)
	boundary := "ot-fleet-" + hex.EncodeToString(sum[:16])
	var b bytes.Buffer
	fmt.Fprintf(&b, "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=%q\n\n--%s\n", boundary, boundary)
	if isMIMEArchive(author) {
		if !utf8.Valid(author) {
			return nil, fmt.Errorf("cloudInit: the MIME archive %w, so cloud-init could not read it", errNotUTF8)
		}
		b.Write(author) // headers and all: one archive in the other
	} else {
		writePart(&b, "Content-Type: text/plain; charset=\"utf-8\"\n", author)
	}
	fmt.Fprintf(&b, "\n--%s\n", boundary)
	writePart(&b, "Content-Type: text/cloud-config; charset=\"utf-8\"\nMerge-Type: "+mergeType+"\n", agents)
	fmt.Fprintf(&b, "\n--%s--\n", boundary)
	return b.Bytes(), nil
}

// decompressUserData is for data that cloud-init decompresses too where it stands alone.
// In a part it would have to be marked, and a MIME archive in it is not found.
func decompressUserData(data []byte) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		return data, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("cloudInit: the user data begins like gzip and is not: %w", err)
	}
	data, err = io.ReadAll(io.LimitReader(r, MaxDataSize+1))
	if err != nil {
		return nil, fmt.Errorf("cloudInit: decompressing the user data: %w", err)
	}
	return data, nil
}

// isMIMEArchive tells a MIME message as cloud-init does.
func isMIMEArchive(data []byte) bool {
	return bytes.Contains(bytes.ToLower(data[:min(len(data), 4096)]), []byte("mime-version:"))
}

func writePart(b *bytes.Buffer, headers string, data []byte) {
	b.WriteString(headers)
	b.WriteString("Content-Transfer-Encoding: base64\n\n")
	const line = 76
	text := base64.StdEncoding.EncodeToString(data)
	for len(text) > line {
		b.WriteString(text[:line] + "\n")
		text = text[line:]
	}
	b.WriteString(text + "\n")
}
