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

// mergeType has cloud-init keep the author's value where both parts set a key, and put the
// agent's items before the author's in lists.
const mergeType = "list(prepend)+dict(no_replace,recurse_list)+str()"

// combineUserData puts the agent's and the author's part into one MIME archive. The agent's
// comes last: cloud-init merges a part by that part's Merge-Type, and the author's may have
// a format without one.
func combineUserData(agentPart, authorPart []byte) ([]byte, error) {
	authorPart, err := decompressUserData(authorPart)
	if err != nil || len(authorPart) == 0 {
		return agentPart, err
	}
	sum := sha256.Sum256(authorPart)
	boundary := "ot-fleet-" + hex.EncodeToString(sum[:16])
	var b bytes.Buffer
	fmt.Fprintf(&b, "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=%q\n\n--%s\n", boundary, boundary)
	if isMIMEArchive(authorPart) {
		if !utf8.Valid(authorPart) {
			return nil, fmt.Errorf("cloudInit: the MIME archive %w, so cloud-init cannot read it", errNotUTF8)
		}
		b.Write(authorPart) // with its headers: an archive within the archive
	} else {
		writePart(&b, "Content-Type: text/plain; charset=\"utf-8\"\n", authorPart)
	}
	fmt.Fprintf(&b, "\n--%s\n", boundary)
	writePart(&b, "Content-Type: text/cloud-config; charset=\"utf-8\"\nMerge-Type: "+mergeType+"\n", agentPart)
	fmt.Fprintf(&b, "\n--%s--\n", boundary)
	return b.Bytes(), nil
}

// decompressUserData unpacks gzip. cloud-init does that too for data outside an archive;
// within one it would need a marked part, and would not find a MIME archive in it.
func decompressUserData(data []byte) ([]byte, error) {
	if !bytes.HasPrefix(data, []byte{0x1f, 0x8b}) {
		return data, nil
	}
	r, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("cloudInit: the user data begins like gzip and is not valid gzip: %w", err)
	}
	data, err = io.ReadAll(io.LimitReader(r, MaxDataSize+1))
	if err != nil {
		return nil, fmt.Errorf("cloudInit: decompressing the user data: %w", err)
	}
	return data, nil
}

// isMIMEArchive uses the test of cloud-init.
func isMIMEArchive(data []byte) bool {
	return bytes.Contains(bytes.ToLower(data[:min(len(data), 4096)]), []byte("mime-version:"))
}

func writePart(b *bytes.Buffer, headers string, data []byte) {
	b.WriteString(headers)
	b.WriteString("Content-Transfer-Encoding: base64\n\n")
	const lineLength = 76
	text := base64.StdEncoding.EncodeToString(data)
	for len(text) > lineLength {
		b.WriteString(text[:lineLength] + "\n")
		text = text[lineLength:]
	}
	b.WriteString(text + "\n")
}
