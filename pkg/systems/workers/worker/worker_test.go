package worker

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// agent serves messages, records the answers, and then ends.
func agent(t *testing.T, messages ...string) (answers map[string]string) {
	answers = map[string]string{}
	n := 0
	mux := http.NewServeMux()
	mux.HandleFunc("GET /2018-06-01/runtime/invocation/next", func(w http.ResponseWriter, _ *http.Request) {
		if n == len(messages) {
			w.WriteHeader(http.StatusGone)
			return
		}
		w.Header().Set("Lambda-Runtime-Aws-Request-Id", messages[n])
		w.Header().Set("Lambda-Runtime-Deadline-Ms", "99999999999999")
		w.Header().Set("Coracle-Message-Attempt", "2")
		_, _ = io.WriteString(w, messages[n])
		n++
	})
	mux.HandleFunc("POST /2018-06-01/runtime/invocation/{id}/{what}", func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		answers[r.PathValue("id")] = r.PathValue("what") + " " + string(body)
		w.WriteHeader(http.StatusAccepted)
	})
	mux.HandleFunc("POST /v1/{path...}", func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "missing") {
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"kind":"Status","reason":"NotFound","message":"no such service"}`)
			return
		}
		_, _ = io.WriteString(w, r.URL.Path+" "+r.Header.Get("Coracle-Wait"))
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	t.Setenv("AWS_LAMBDA_RUNTIME_API", strings.TrimPrefix(s.URL, "http://"))
	t.Setenv("CORACLE_MESSAGES_API", strings.TrimPrefix(s.URL, "http://"))
	return answers
}

// TestServe checks that each message is answered, whatever the handler does.
func TestServe(t *testing.T) {
	answers := agent(t, "good", "bad", "panics", "large")
	require.NoError(t, Serve(t.Context(), func(ctx context.Context, m *Message) ([]byte, error) {
		_, limited := ctx.Deadline()
		require.True(t, limited)
		require.Equal(t, 2, m.Attempt)
		switch string(m.Payload) {
		case "bad":
			return nil, errors.New("it is bad")
		case "panics":
			panic("it panics")
		case "large":
			return make([]byte, MaxPayload+1), nil
		}
		return []byte("fine"), nil
	}))
	require.Equal(t, "response fine", answers["good"])
	require.Contains(t, answers["bad"], `"errorMessage":"it is bad"`)
	require.Contains(t, answers["panics"], "it panics")
	require.Contains(t, answers["large"], "error ")
	require.Len(t, answers, 4)
}

func TestJSON(t *testing.T) {
	h := JSON(func(_ context.Context, in []int) (map[string]int, error) { return map[string]int{"n": len(in)}, nil })
	out, err := h(t.Context(), &Message{Payload: []byte("[1, 2]")})
	require.NoError(t, err)
	require.Equal(t, `{"n":2}`, string(out))
	_, err = h(t.Context(), &Message{Payload: []byte("x")})
	require.Error(t, err)
}

func TestSend(t *testing.T) {
	agent(t)
	out, err := Call(t.Context(), "service/a", []byte("x"))
	require.NoError(t, err)
	require.Equal(t, "/v1/services/a/message true", string(out))
	out, err = post(t.Context(), "ns/pod/a", nil, false)
	require.NoError(t, err)
	require.Equal(t, "/v1/namespaces/ns/pods/a/message ", string(out))
	var failed *SendError
	require.ErrorAs(t, Send(t.Context(), "service/missing", nil), &failed)
	require.Equal(t, SendError{Code: 404, Reason: "NotFound", Message: "no such service"}, *failed)
	require.Error(t, Send(t.Context(), "a", nil))
}

func TestServeNeedsAWorker(t *testing.T) {
	t.Setenv("AWS_LAMBDA_RUNTIME_API", "")
	require.Error(t, Serve(t.Context(), nil))
}
