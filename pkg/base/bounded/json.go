package bounded

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
)

// ErrNotJSON means that an HTTP response has a content type other than JSON or text.
var ErrNotJSON = errors.New("the answer is not JSON")

// JSONAnswer limits the body of an HTTP response whose client decodes JSON: it has at most limit bytes and values JSON
// values, each of which takes far more memory once decoded. The limits apply to each event of a stream, such as a
// watch. In protobuf and YAML, values cannot be counted, and clients decode what Content-Type says: an answer that is
// neither JSON nor text is ErrNotJSON.
func JSONAnswer(res *http.Response, limit int64, values int, stream bool) error {
	given := res.Header.Get("Content-Type")
	media, _, err := mime.ParseMediaType(given)
	switch {
	case given == "":
		res.Header.Set("Content-Type", "application/json") // clients have other defaults
	case err != nil || media != "application/json" && !strings.HasPrefix(media, "text/"):
		_ = res.Body.Close()
		return fmt.Errorf("%w: its content type is %.100q", ErrNotJSON, given)
	}
	if res.ContentLength > limit {
		_ = res.Body.Close()
		return &TooLargeError{Name: "the answer", Limit: limit}
	}
	body := io.Reader(res.Body)
	if !stream {
		body = Reader(body, limit)
	}
	res.Body = struct {
		io.Reader
		io.Closer
	}{JSON(body, limit, values), res.Body}
	return nil
}

// AcceptJSON removes Kubernetes' protobuf from the Accept header of a request whose response JSONAnswer limits.
func AcceptJSON(h http.Header) {
	media := slices.DeleteFunc(strings.Split(h.Get("Accept"), ","), func(media string) bool {
		return strings.HasPrefix(strings.TrimSpace(media), "application/vnd.kubernetes.protobuf")
	})
	h.Set("Accept", cmp.Or(strings.Join(media, ","), "application/json"))
}

// JSON returns a reader of r that fails before a JSON value at the top level has more than limit bytes or contains
// more than values other values.
func JSON(r io.Reader, limit int64, values int) io.Reader {
	return &jsonReader{Reader: r, limit: limit, most: values}
}

type jsonReader struct {
	io.Reader
	limit, size  int64
	most, values int
	Nesting
}

// Nesting follows the nesting of JSON text. It does not validate the text.
type Nesting struct {
	Depth           int // number of open objects and lists
	quoted, escaped bool
}

// Next takes the next byte, and reports whether it is outside of strings.
func (n *Nesting) Next(c byte) bool {
	switch {
	case n.escaped:
		n.escaped = false
		return false
	case n.quoted:
		n.escaped, n.quoted = c == '\\', c != '"'
		return false
	}
	switch c {
	case '"':
		n.quoted = true
		return false
	case '{', '[':
		n.Depth++
	case '}', ']':
		n.Depth--
	}
	return true
}

func (j *jsonReader) Read(p []byte) (int, error) {
	n, err := j.Reader.Read(p)
	for _, c := range p[:n] {
		j.size++
		if j.Next(c) {
			switch c {
			case '{', '[', ',':
				j.values++
			case '}', ']':
				if j.Depth == 0 {
					j.size, j.values = 0, 0
				}
			}
		}
		if j.size > j.limit {
			return 0, &TooLargeError{Name: "the answer", Limit: j.limit}
		}
		if j.values > j.most {
			return 0, fmt.Errorf("the answer has more than %d values", j.most)
		}
	}
	return n, err
}
