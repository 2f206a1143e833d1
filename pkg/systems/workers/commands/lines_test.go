package commands

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/coracle-dev/coracle/pkg/systems/workers/sender"
)

// TestObjects checks the lines of --batch --objects.
func TestObjects(t *testing.T) {
	o := SendOptions{Batch: true, Objects: true, Key: "all", Trace: "t"}
	for _, c := range []struct {
		line string
		want sender.Message
	}{
		{
			`{"id": "order-17", "key": "customer-4", "data": {"total": 3}}`,
			sender.Message{ID: "order-17", Key: "customer-4", ContentType: "application/json", Payload: []byte(`{"total": 3}`)},
		},
		{`{"data": "text"}`, sender.Message{Key: "all", ContentType: "text/plain; charset=utf-8", Payload: []byte("text")}},
		{`{"data_base64": "AAE=", "key": "k"}`, sender.Message{Key: "k", Payload: []byte{0, 1}}},
		{
			`{"specversion": "1.0", "type": "t", "id": "1", "source": "/shop", "partitionkey": "k", "datacontenttype":
"text/plain", "data": "x", "traceparent": "u"}`,
			sender.Message{ID: "/shop 1", Key: "k", ContentType: "text/plain", Payload: []byte("x"), Trace: "u"},
		},
		{`{"id": "1", "source": "/shop"}`, sender.Message{ID: "/shop 1", Key: "all", ContentType: "application/json"}},
	} {
		if c.want.Trace == "" {
			c.want.Trace = "t"
		}
		m, err := o.message([]byte(c.line), 1)
		require.NoError(t, err, c.line)
		require.Equal(t, c.want.Payload, []byte(m.Payload), c.line)
		m.Payload, c.want.Payload = nil, nil
		require.Equal(t, c.want, m, c.line)
	}
	for _, bad := range []string{"text", `{"total": 3}`, `[1]`, `{"id": 7, "data": 1}`} {
		_, err := o.message([]byte(bad), 1)
		require.Error(t, err, bad)
	}
	o.Wait = true
	m, err := o.message([]byte(`{"id": "1", "source": "/shop", "data": 1}`), 1)
	require.NoError(t, err)
	require.Empty(t, m.ID, "replies are not kept for repetitions")
}
