package shutdown

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/godbus/dbus/v5"
)

// Names on the system bus; see org.freedesktop.login1(5) and the D-Bus specification.
const (
	busName        = "org.freedesktop.DBus"
	logindName     = "org.freedesktop.login1"
	logindPath     = dbus.ObjectPath("/org/freedesktop/login1")
	logindManager  = logindName + ".Manager"
	noOwner        = busName + ".Error.NameHasNoOwner"
	unknownService = busName + ".Error.ServiceUnknown"
	inProgress     = logindName + ".OperationInProgress"
)

// longestDelay replaces an unlimited delay.
const longestDelay = 24 * time.Hour

type logind struct {
	conn   *dbus.Conn
	end    context.CancelFunc
	object dbus.BusObject
	*signals
}

// Connect connects to the system bus at DBUS_SYSTEM_BUS_ADDRESS or at the default path.
func Connect(ctx context.Context) (Logind, error) {
	alive, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end) // in case the daemon does not answer
	l := &logind{end: end, signals: &signals{changed: make(chan struct{}, 1)}}
	var err error
	if l.conn, err = dbus.ConnectSystemBus(dbus.WithContext(alive), dbus.WithSignalHandler(l.signals)); err != nil {
		end()
		return nil, fmt.Errorf("system bus: %w", err)
	}
	stop()
	l.object = l.conn.Object(logindName, logindPath)
	for _, rule := range []string{
		"type='signal',sender='" + logindName + "',interface='" + logindManager + "',member='PrepareForShutdown',path='" +
			string(logindPath) + "'",
		"type='signal',sender='" + busName + "',interface='" + busName + "',member='NameOwnerChanged',arg0='" + logindName +
			"'",
	} {
		if err := l.call(ctx, l.conn.BusObject(), busName+".AddMatch", rule).Err; err != nil {
			l.Close()
			return nil, fmt.Errorf("system bus: %w", err)
		}
	}
	return l, nil
}

func (l *logind) Changed() <-chan struct{} { return l.changed }
func (l *logind) Lost() <-chan struct{}    { return l.conn.Context().Done() }

func (l *logind) Close() {
	l.end()
	_ = l.conn.Close()
}

// call calls a method without starting its service. If ctx is done first, it closes the connection and still waits
// for the result, so that a file descriptor in it is never leaked.
func (l *logind) call(ctx context.Context, o dbus.BusObject, method string, args ...any) *dbus.Call {
	call := o.Go(method, dbus.FlagNoAutoStart, make(chan *dbus.Call, 1), args...)
	select {
	case <-call.Done:
		return call
	case <-ctx.Done():
		l.Close()
		return <-call.Done
	}
}

func (l *logind) State(ctx context.Context) (s State, err error) {
	if err := l.call(ctx, l.conn.BusObject(), busName+".GetNameOwner", logindName).Store(&s.Instance); err != nil {
		return s, asked(err)
	}
	l.from.Store(&s.Instance) // first, so that any change is either in the answers or signalled
	var delay uint64
	if err := errors.Join(l.property(ctx, "PreparingForShutdown", &s.ShuttingDown),
		l.property(ctx, "InhibitDelayMaxUSec", &delay)); err != nil {
		return s, err
	}
	s.Delay = time.Duration(min(delay, uint64(longestDelay/time.Microsecond))) * time.Microsecond
	return s, nil
}

func (l *logind) property(ctx context.Context, name string, value any) error {
	var v dbus.Variant
	err := l.call(ctx, l.object, busName+".Properties.Get", logindManager, name).Store(&v)
	if err == nil {
		err = v.Store(value)
	}
	return asked(err)
}

func (l *logind) Inhibit(ctx context.Context) (io.Closer, error) {
	var fd dbus.UnixFD
	err := l.call(ctx, l.object, logindManager+".Inhibit", "shutdown", "coracle", "pods are terminated "+
		"first", "delay").Store(&fd)
	if err != nil {
		return nil, asked(err)
	}
	return os.NewFile(uintptr(fd), "inhibitor"), nil
}

func asked(err error) error {
	var e dbus.Error
	if !errors.As(err, &e) {
		if err != nil {
			err = fmt.Errorf("ask systemd-logind: %w", err)
		}
		return err
	}
	switch e.Name {
	case noOwner, unknownService:
		return ErrAbsent
	case inProgress:
		return ErrInProgress
	}
	return fmt.Errorf("ask systemd-logind: %w (%s)", err, e.Name)
}

// signals handles the connection's signals. Any client on the bus can send signals to it, so only those from logind
// and from the bus itself count.
type signals struct {
	changed chan struct{}
	from    atomic.Pointer[string] // logind's unique bus name, nil until known
}

func (s *signals) DeliverSignal(_, _ string, signal *dbus.Signal) {
	from := s.from.Load()
	switch {
	case signal.Sender == busName && signal.Name == busName+".NameOwnerChanged":
	case from != nil && signal.Sender == *from && signal.Name == logindManager+".PrepareForShutdown":
	default:
		return
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}
