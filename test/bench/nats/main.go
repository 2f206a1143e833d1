// Command nats measures request-reply and publishing through a NATS server on this machine, as the yardstick for
// messages to workers (test/bench, group messages). Server, echo and sender are separate processes, so that the
// processor time of each is known. Unlike in a cluster, nothing is encrypted or authorized.
//
//	go -C test/bench/nats run . [-senders 32] [-time 4s] [-size 5] [-stream]
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const subject = "echo"

func main() {
	log.SetFlags(0)
	role := flag.String("role", "", "internal: server or echo")
	url := flag.String("url", "", "internal: of the server")
	senders := flag.Int("senders", 32, "how many send at once")
	length := flag.Duration("time", 4*time.Second, "of each measurement")
	size := flag.Int("size", 5, "bytes of a message")
	jetStream := flag.Bool("stream", false, "measure one writer of a JetStream stream instead")
	flag.Parse()
	err := func() error {
		switch *role {
		case "server":
			return serve()
		case "echo":
			return echo(*url)
		}
		if *jetStream {
			return streams(*length, make([]byte, *size))
		}
		return measure(*senders, *length, make([]byte, *size))
	}()
	if err != nil {
		log.Fatal("nats: ", err)
	}
}

// serve prints the server's URL and serves until the standard input ends.
func serve() error {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		return err
	}
	go s.Start()
	if !s.ReadyForConnections(5 * time.Second) {
		return errors.New("the NATS server did not start")
	}
	fmt.Println(s.ClientURL())
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	s.Shutdown()
	return nil
}

func echo(url string) error {
	c, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err := c.Subscribe(subject, func(m *nats.Msg) {
		if m.Reply != "" {
			_ = m.Respond(m.Data)
		}
	}); err != nil {
		return err
	}
	if err := c.Flush(); err != nil {
		return err
	}
	fmt.Println("ready")
	_, _ = bufio.NewReader(os.Stdin).ReadByte()
	return nil
}

// start runs this program in a role, and returns its first line of output.
func start(args ...string) (line string, stop func() time.Duration, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	cmd := exec.CommandContext(context.Background(), self, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return "", nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return "", nil, err
	}
	if err := cmd.Start(); err != nil {
		return "", nil, err
	}
	line, err = bufio.NewReader(out).ReadString('\n')
	stop = func() time.Duration {
		_ = in.Close()
		_ = cmd.Wait()
		return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	return strings.TrimSpace(line), stop, err
}

func own() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func measure(senders int, length time.Duration, payload []byte) error {
	for _, m := range []struct {
		name    string
		senders int
		send    func(*nats.Conn) error
	}{
		{"request and reply", 1, func(c *nats.Conn) error { _, err := c.Request(subject, payload, time.Second); return err }},
		{
			"request and reply", senders,
			func(c *nats.Conn) error { _, err := c.Request(subject, payload, time.Second); return err },
		},
		// A publish without a flush would only fill a buffer. The server has accepted the message when it answers
		// the ping.
		{
			"publish, flushed", senders, func(c *nats.Conn) error { return errors.Join(c.Publish(subject, payload), c.Flush()) },
		},
	} {
		url, stopServer, err := start("-role", "server")
		if err != nil {
			return err
		}
		_, stopEcho, err := start("-role", "echo", "-url", url)
		if err != nil {
			return err
		}
		before := own()
		took, elapsed, err := load(url, m.senders, length, m.send)
		if err != nil {
			return err
		}
		client := own() - before
		each := func(d time.Duration) float64 { return float64(d.Microseconds()) / float64(max(len(took), 1)) }
		echoed := stopEcho()
		fmt.Printf("%-20s %2d senders %8.0f per s   p50 %v   CPU us each: server %.0f, echo %.0f, sender %.0f\n", m.name,
			m.senders,
			float64(len(took))/elapsed.Seconds(), took[len(took)/2].Round(time.Microsecond), each(stopServer()), each(echoed),
			each(client))
	}
	return nil
}

// load sends from n connections concurrently, and returns the sorted durations of the messages.
func load(url string, n int, length time.Duration,
	send func(*nats.Conn) error) (took []time.Duration, elapsed time.Duration, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	began := time.Now()
	for range n {
		c, connectErr := nats.Connect(url)
		if connectErr != nil {
			return nil, 0, connectErr
		}
		defer c.Close()
		wg.Go(func() {
			var mine []time.Duration
			var sendErr error
			for time.Since(began) < length && sendErr == nil {
				at := time.Now()
				if sendErr = send(c); sendErr == nil {
					mine = append(mine, time.Since(at))
				}
			}
			mu.Lock()
			defer mu.Unlock()
			took, err = append(took, mine...), errors.Join(err, sendErr)
		})
	}
	wg.Wait()
	slices.Sort(took)
	if err == nil && len(took) == 0 {
		err = errors.New("no message was sent")
	}
	return took, time.Since(began), err
}
