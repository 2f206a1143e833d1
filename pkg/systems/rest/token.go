package rest

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/coracle-dev/coracle/pkg/base/bounded"
)

const (
	// maxToken bounds the token file, minToken is the shortest valid token, in bytes.
	maxToken, minToken = 4096, 16
)

// tokenFile compares tokens with the token in a file, which is reread when it changes. While the file cannot be read,
// no client is authenticated.
type tokenFile struct {
	path string

	mu   sync.Mutex
	seen os.FileInfo
	sum  [sha256.Size]byte
	err  error
}

func newTokenFile(path string) (*tokenFile, error) {
	t := &tokenFile{path: path}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refresh()
	return t, t.err
}

// refresh reads the file if it has changed. A file modified in the last second is always read, since another write may
// not change its timestamp.
func (t *tokenFile) refresh() {
	info, err := os.Stat(t.path)
	if err != nil {
		t.seen, t.err = nil, err
		return
	}
	if t.seen != nil && os.SameFile(t.seen, info) && t.seen.Size() == info.Size() &&
		t.seen.ModTime().Equal(info.ModTime()) && time.Since(info.ModTime()) > time.Second {
		return
	}
	f, err := os.Open(t.path)
	if err != nil {
		t.seen, t.err = nil, err
		return
	}
	defer f.Close()
	data, err := bounded.All(f, maxToken)
	if err != nil {
		t.seen, t.err = nil, fmt.Errorf("%s: %w", t.path, err)
		return
	}
	data = bytes.TrimSpace(data)
	if len(data) < minToken {
		t.seen, t.err = nil, fmt.Errorf("%s: the token has %d characters: use at least %d", t.path, len(data), minToken)
		return
	}
	t.seen, t.sum, t.err = info, sha256.Sum256(data), nil
}

var errNoToken = errors.New("missing or invalid token")

// check compares a token in constant time.
func (t *tokenFile) check(token string) error {
	sum := sha256.Sum256([]byte(token))
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refresh()
	if t.err != nil {
		return t.err
	}
	if subtle.ConstantTimeCompare(sum[:], t.sum[:]) != 1 {
		return errNoToken
	}
	return nil
}

// sentToken returns the token in a request's headers or, if query is set, in its query.
func sentToken(r *http.Request, query bool) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if ok && strings.EqualFold(scheme, "Bearer") {
		return strings.TrimSpace(token)
	}
	if query {
		return r.URL.Query().Get("token")
	}
	return ""
}
