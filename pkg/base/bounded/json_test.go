package bounded

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

type endless string

func (e endless) Read(p []byte) (int, error) {
	return copy(p, strings.Repeat(string(e), 1+len(p)/len(e))), nil
}

func TestJSONLimitsEachValue(t *testing.T) {
	for text, want := range map[string]string{
		strings.Repeat(`{"a":[1,2]}`+"\n", 1000):          "", // a watch may have any number of events
		`{"a":"` + strings.Repeat(`{},\"`, 10) + `"}`:     "", // nothing in a text is a value
		`[` + strings.Repeat("0,", 20) + "0]":             "more than 9 values",
		`{"a":"` + strings.Repeat("x", 100) + `"}`:        "limit of 64 bytes",
		`{}` + strings.Repeat(" ", 100):                   "limit of 64 bytes",
		`[[` + strings.Repeat("[],", 20) + "[]]]":         "more than 9 values",
		strings.Repeat("{}", 5) + strings.Repeat("{", 10): "more than 9 values",
	} {
		_, err := io.ReadAll(JSON(strings.NewReader(text), 64, 9))
		if want == "" {
			require.NoError(t, err, text)
		} else {
			require.ErrorContains(t, err, want, text)
		}
	}
	for _, begin := range []string{`{"a":"`, `"`, "{}", ""} {
		n, err := io.Copy(io.Discard, JSON(io.MultiReader(strings.NewReader(begin), endless("x ")), 1<<20, 9))
		require.ErrorContains(t, err, "limit of 1048576 bytes", begin)
		require.Less(t, n, int64(2<<20))
	}
}

// An answer that the client would decode as something else than JSON is refused.
func TestJSONAnswerIsJSONOrText(t *testing.T) {
	for given, want := range map[string]string{
		"": "application/json", "application/json;stream=watch": "application/json;stream=watch",
		"text/html; charset=utf-8": "text/html; charset=utf-8", "application/vnd.kubernetes.protobuf": "",
		"application/yaml": "", "application/cbor": "", "nonsense;;": "",
	} {
		res := &http.Response{
			Header: http.Header{"Content-Type": {given}}, Body: io.NopCloser(strings.NewReader("{}")), ContentLength: -1,
		}
		err := JSONAnswer(res, 64, 9, false)
		if want == "" {
			require.ErrorContains(t, err, "the answer is not JSON", given)
			continue
		}
		require.NoError(t, err, given)
		require.Equal(t, want, res.Header.Get("Content-Type"))
		data, err := io.ReadAll(res.Body)
		require.NoError(t, err)
		require.Equal(t, "{}", string(data))
	}
	res := &http.Response{Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), ContentLength: 65}
	require.ErrorContains(t, JSONAnswer(res, 64, 9, false), "limit of 64 bytes")
	for stream, want := range map[bool]string{true: "", false: "limit of 64 bytes"} {
		res := &http.Response{Header: http.Header{}, Body: io.NopCloser(strings.NewReader(strings.Repeat("{}", 40)))}
		require.NoError(t, JSONAnswer(res, 64, 9, stream))
		if _, err := io.ReadAll(res.Body); want == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, want)
		}
	}
}
