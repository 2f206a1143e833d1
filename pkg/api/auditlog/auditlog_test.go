package auditlog

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"),
		goleak.IgnoreAnyFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun")) // never ends
}

const all = "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"

func policyFile(t *testing.T, text string) string {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func event(id string) *auditinternal.Event {
	return &auditinternal.Event{
		Level:   auditinternal.LevelMetadata,
		AuditID: types.UID(id),
		Stage:   auditinternal.StageResponseComplete,
		Verb:    "get",
	}
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func run(t *testing.T, l *Log) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx) }()
	return func() { cancel(); require.NoError(t, <-done) }
}

func TestLinesOfTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit", "audit.log")
	l, err := Open(Config{PolicyFile: policyFile(t, all), Path: path, Logger: quiet()})
	require.NoError(t, err)
	stop := run(t, l)
	big := event("big")
	big.ResponseObject = &runtime.Unknown{
		ContentType: runtime.ContentTypeJSON, Raw: []byte(`{"a":"` + strings.Repeat("x", 1<<20) + `"}`),
	}
	require.True(t, l.ProcessEvents(event("one"), event("two"), big))
	stop()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	info, err := f.Stat()
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode())
	var ids []string
	for lines := bufio.NewReader(f); ; {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			break
		}
		var e auditv1.Event
		require.NoError(t, json.Unmarshal([]byte(line), &e))
		require.Equal(t, "audit.k8s.io/v1", e.APIVersion)
		require.Equal(t, "Event", e.Kind)
		ids = append(ids, string(e.AuditID))
	}
	require.Equal(t, []string{"one", "two", "big"}, ids)
	require.EqualValues(t, 3, l.Events())
}

// stuck is a disk whose writes block until free is closed.
type stuck struct{ free chan struct{} }

func (s stuck) Write(p []byte) (int, error) { <-s.free; return len(p), nil }
func (s stuck) Close() error                { return nil }

func TestAFullBufferDropsEvents(t *testing.T) {
	policy := policyFile(t, all)
	synctest.Test(t, func(t *testing.T) {
		disk := stuck{make(chan struct{})}
		l, err := Open(Config{PolicyFile: policy, out: disk, Logger: quiet()})
		require.NoError(t, err)
		stop := run(t, l)
		l.ProcessEvents(event("first"))
		synctest.Wait() // the event is being written
		for range mostEvents + 10 {
			require.True(t, l.ProcessEvents(event("more")))
		}
		require.EqualValues(t, 10, l.Dropped("log"))
		close(disk.free)
		synctest.Wait()
		require.Empty(t, l.sinks[0].(*file).waiting)
		require.Zero(t, l.sinks[0].(*file).bytes.Load())
		stop()
	})
	synctest.Test(t, func(t *testing.T) {
		l, err := Open(Config{PolicyFile: policy, out: stuck{}, Logger: quiet()})
		require.NoError(t, err)
		for range 100 {
			e := event("large")
			e.RequestObject = &runtime.Unknown{Raw: make([]byte, 1<<20)}
			require.True(t, l.ProcessEvents(e))
		}
		waiting := len(l.sinks[0].(*file).waiting)
		require.Less(t, waiting, 33, "the buffer is bounded in bytes too")
		require.EqualValues(t, 100-waiting, l.Dropped("log"))
	})
}

// All parts of an event count, also those that clients control: a header of 64 KiB in each of 10,000 events would
// take 640 MiB.
func TestAllOfAnEventIsCounted(t *testing.T) {
	long := strings.Repeat("x", 60<<10)
	many := slices.Repeat([]string{"192.0.2.1"}, 8<<10)
	for what, change := range map[string]func(e *auditinternal.Event){
		"URI":          func(e *auditinternal.Event) { e.RequestURI = long },
		"user agent":   func(e *auditinternal.Event) { e.UserAgent = long },
		"addresses":    func(e *auditinternal.Event) { e.SourceIPs = many },
		"impersonated": func(e *auditinternal.Event) { e.ImpersonatedUser = &authenticationv1.UserInfo{Username: long} },
		"groups":       func(e *auditinternal.Event) { e.User.Groups = many },
		"extra": func(e *auditinternal.Event) {
			e.User.Extra = map[string]authenticationv1.ExtraValue{"k": {long}}
		},
		"annotations": func(e *auditinternal.Event) { e.Annotations = map[string]string{"a": long} },
		"message":     func(e *auditinternal.Event) { e.ResponseStatus = &metav1.Status{Message: long} },
		"causes": func(e *auditinternal.Event) {
			e.ResponseStatus = &metav1.Status{Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Message: long}}}}
		},
	} {
		l, err := Open(Config{PolicyFile: policyFile(t, all), out: stuck{}, Logger: quiet()})
		require.NoError(t, err)
		e := event("long")
		change(e)
		for range mostBytes/len(long) + 1 {
			l.ProcessEvents(e)
		}
		require.Positive(t, l.Dropped("log"), what)
	}
}

// broken is a disk on which writes of more than most bytes fail.
type broken struct {
	most    int
	written bytes.Buffer
}

func (b *broken) Write(p []byte) (int, error) {
	if len(p) > b.most {
		return 0, errors.New("too much")
	}
	return b.written.Write(p)
}

func (b *broken) Close() error { return nil }

// A line that is too long does not take others with it, and each line that could not be written is counted.
func TestLinesThatCannotBeWritten(t *testing.T) {
	for most, want := range map[int]struct{ written, dropped int }{200 << 10: {20, 1}, 0: {0, 21}} {
		disk := &broken{most: most}
		l, err := Open(Config{PolicyFile: policyFile(t, all), out: disk, Logger: quiet()})
		require.NoError(t, err)
		for i := range 21 {
			e := event(fmt.Sprint(i))
			if i == 10 {
				e.RequestObject = &runtime.Unknown{
					ContentType: runtime.ContentTypeJSON, Raw: []byte(`"` + strings.Repeat("x", 300<<10) + `"`),
				}
			}
			l.ProcessEvents(e)
		}
		run(t, l)()
		require.Equal(t, want.written, bytes.Count(disk.written.Bytes(), []byte("\n")))
		require.EqualValues(t, want.dropped, l.Dropped("log"))
	}
}

func TestFilesAreRotated(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	l, err := Open(Config{PolicyFile: policyFile(t, all), Path: path, MaxSize: 1, MaxBackups: 2, Logger: quiet()})
	require.NoError(t, err)
	stop := run(t, l)
	for range 6 {
		e := event("large")
		e.RequestObject = &runtime.Unknown{
			ContentType: runtime.ContentTypeJSON, Raw: []byte(`"` + strings.Repeat("x", 700<<10) + `"`),
		}
		l.ProcessEvents(e)
		require.Eventually(t, func() bool { return l.sinks[0].(*file).bytes.Load() == 0 }, time.Minute, time.Millisecond)
	}
	stop()
	require.Eventually(t, func() bool {
		files, err := os.ReadDir(filepath.Dir(path))
		return err == nil && len(files) == 3
	}, time.Minute, 10*time.Millisecond)
}

func TestOpenRefuses(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	for text, want := range map[string]string{
		"": "audit-policy-file", "kind: Policy": "audit-policy-file",
		"apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Loud}]": "Loud",
		"apiVersion: audit.k8s.io/v1\nkind: Policy\nrulez: []":              "audit-policy-file",
	} {
		_, err := Open(Config{PolicyFile: policyFile(t, text), Path: path, Logger: quiet()})
		require.ErrorContains(t, err, want, text)
	}
	_, err := Open(Config{PolicyFile: "/dev/zero", Path: path, Logger: quiet()})
	require.ErrorContains(t, err, "not a regular file")
	_, err = Open(Config{PolicyFile: policyFile(t, all), Path: "/proc/nothing/audit.log", Logger: quiet()})
	require.ErrorContains(t, err, "audit-log-path")
}
