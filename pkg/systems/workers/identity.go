package workers

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// dedupIDOf returns the sender's ID of a message, or "". A CloudEvent whose sender waits for the reply has none: each
// repetition needs a reply.
func dedupIDOf(req *http.Request, wait bool) (string, error) {
	q, h := req.URL.Query(), req.Header
	id, source := h.Get(workers.HeaderEventID), h.Get(workers.HeaderEventSource)
	switch {
	case q.Has("id"):
		id = q.Get("id")
	case len(h.Values(workers.HeaderDedupID)) > 0:
		id = h.Get(workers.HeaderDedupID)
	case id == "" || source == "" || wait:
		return "", nil
	default:
		id = source + " " + id
	}
	return id, checkDedupID(id, wait)
}

// orderKeyOf returns the key of a message, or "".
func orderKeyOf(req *http.Request) (key string, err error) {
	q, h := req.URL.Query(), req.Header
	switch {
	case q.Has("key"):
		key = q.Get("key")
	case len(h.Values(workers.HeaderOrderKey)) > 0:
		key = h.Get(workers.HeaderOrderKey)
	case len(h.Values(workers.HeaderEventKey)) > 0:
		key = h.Get(workers.HeaderEventKey)
	default:
		return "", nil
	}
	return key, checkText("key", key, workers.MaxOrderKey)
}

// traceOf returns the traceparent of a request or, if it has none, of its CloudEvent.
func traceOf(h http.Header) string {
	return cmp.Or(validTrace(h.Get("Traceparent")), validTrace(h.Get(workers.HeaderEventTrace)))
}

// validTrace returns a traceparent unchanged or, if it is invalid, "": the program begins a new trace then (W3C Trace
// Context). The queue does not keep tracestate, which would add up to 512 bytes to each message.
func validTrace(text string) string {
	parts := strings.SplitN(text, "-", 5)
	if len(text) > maxTrace || len(parts) < 4 || parts[0] == "ff" || parts[0] == "00" && len(parts) > 4 {
		return ""
	}
	for i, digits := range []int{2, 32, 16, 2} {
		part := parts[i]
		if len(part) != digits || strings.Trim(part, "0123456789abcdef") != "" {
			return ""
		}
		if (i == 1 || i == 2) && strings.Trim(part, "0") == "" {
			return ""
		}
	}
	return text
}

// maxTrace bounds a traceparent of a later version, in bytes.
const maxTrace = 128

// checkDedupID returns an error for an ID that a sender may not give to a message.
func checkDedupID(id string, wait bool) error {
	if wait {
		return apierrors.NewBadRequest("an id is for messages without a reply, because replies are not kept for " +
			"repetitions: leave out id, or wait")
	}
	return checkText("id", id, workers.MaxDedupID)
}

// checkText returns an error for a text of a sender's that cannot be kept with its message.
func checkText(name, text string, most int) error {
	switch {
	case text == "":
		return apierrors.NewBadRequest("the " + name + " is empty: leave it out, or give one")
	case len(text) > most:
		return apierrors.NewBadRequest("the " + name + " has " + strconv.Itoa(len(text)) + " bytes, at most " +
			strconv.Itoa(most) + " are possible: send a hash of it")
	case !utf8.ValidString(text) || strings.ContainsFunc(text, unicode.IsControl):
		return apierrors.NewBadRequest("the " + name + " has control characters or is not UTF-8: encode it, for example " +
			"in base64")
	}
	return nil
}
