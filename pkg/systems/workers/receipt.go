package workers

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	workers "github.com/coracle-dev/coracle/apis/workers/v1alpha1"
)

// A node forwards a message when its pod is removed before handling it, or when it goes to the dead-letter worker. The
// pod may no longer exist then. To keep a node from sending other messages, each message carries a receipt: a MAC of
// the message and of the services to which it may go, which only API servers can compute. A node can still replay
// messages.

var errNotGiven = errors.New("a node may forward only messages that were sent to its pods, and only to the pod's " +
	"worker or dead-letter worker")

// fromNode reports whether a node sends the message under its own name.
func fromNode(req *http.Request) bool {
	u, ok := request.UserFrom(req.Context())
	return ok && slices.Contains(u.GetGroups(), user.NodesGroup)
}

// receipt returns the receipt of a message to a pod, or "" if the message cannot be forwarded.
func (s sender) receipt(p *corev1.Pod, contentType string, payload []byte) string {
	var q struct{ Worker, DeadLetter string }
	if json.Unmarshal([]byte(p.Annotations[workers.AnnotationQueue]), &q) != nil || q.Worker == "" && q.DeadLetter == "" {
		return ""
	}
	code := s.seal(q.Worker, q.DeadLetter, contentType, payload)
	if code == nil {
		return ""
	}
	return q.Worker + "," + q.DeadLetter + "," + base64.RawURLEncoding.EncodeToString(code)
}

// mayForward reports whether the request has a valid receipt for the message and the service.
func (s sender) mayForward(req *http.Request, payload []byte, service string) bool {
	parts := strings.Split(req.Header.Get(workers.HeaderReceipt), ",")
	if len(parts) != 3 || service != parts[0] && service != parts[1] {
		return false
	}
	code, err := base64.RawURLEncoding.DecodeString(parts[2])
	want := s.seal(parts[0], parts[1], req.Header.Get("Content-Type"), payload)
	return err == nil && want != nil && hmac.Equal(code, want)
}

func (s sender) seal(worker, deadLetter, contentType string, payload []byte) []byte {
	_, namespace, _ := s.on.Target()
	sum := sha256.Sum256(payload)
	var b []byte
	for _, part := range []string{"message", namespace, worker, deadLetter, contentType} {
		b = append(binary.AppendUvarint(b, uint64(len(part))), part...)
	}
	if s.host.Seal == nil {
		return nil
	}
	return s.host.Seal(append(b, sum[:]...))
}
