// Command record runs the commands of a script in a terminal's look, and writes them with their output as an
// animated SVG for the README. Run it by hand, as root, on a machine without a cluster:
//
//	go run ./hack/record -out .github/tour.svg hack/record/tour.sh
package main

import (
	"bufio"
	"encoding/xml"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/exec"
	"strings"
	"time"
)

const (
	columns    = 100
	lineHeight = 19
	pause      = 900 * time.Millisecond // the pause after each command
)

type line struct {
	at      time.Duration
	text    string
	command bool
}

func main() {
	out := flag.String("out", ".github/tour.svg", "file to write")
	flag.Parse()
	if err := run(flag.Arg(0), *out); err != nil {
		log.Fatal(err)
	}
}

// run executes each line of the script in one shell. It runs lines that begin with # without showing them.
func run(script, out string) error {
	data, err := os.ReadFile(script)
	if err != nil {
		return err
	}
	shell := exec.Command("bash")
	stdin, err := shell.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := shell.StdoutPipe()
	if err != nil {
		return err
	}
	shell.Stderr = os.Stderr
	if err := shell.Start(); err != nil {
		return err
	}
	reader, at := bufio.NewReader(stdout), time.Duration(0)
	var lines []line
	for command := range strings.Lines(string(data)) {
		command = strings.TrimSpace(command)
		hidden, isHidden := strings.CutPrefix(command, "# ")
		if isHidden {
			command = hidden
		} else if command != "" {
			lines = append(lines, line{at, "$ " + command, true})
		}
		began := time.Now()
		const end = "-- end of the command --"
		if _, err := fmt.Fprintf(stdin, "{ %s\n} 2>&1; echo '%s'\n", command+" ", end); err != nil {
			return err
		}
		for command != "" {
			text, err := reader.ReadString('\n')
			if err != nil {
				return fmt.Errorf("%s: %w", command, err)
			}
			text = strings.TrimRight(text, "\n")
			if text == end {
				break
			}
			if !isHidden {
				lines = append(lines, line{at + time.Since(began), text, false})
			}
		}
		if !isHidden {
			at += time.Since(began) + pause
			lines = append(lines, line{at: at})
		}
	}
	if err := stdin.Close(); err != nil {
		return err
	}
	if err := shell.Wait(); err != nil {
		return err
	}
	f, err := os.Create(out)
	if err != nil {
		return err
	}
	defer f.Close()
	return draw(f, lines)
}

// draw writes lines that appear at their times. A viewer without animations shows all of them.
func draw(w io.Writer, lines []line) error {
	height := len(lines)*lineHeight + 30
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="monospace" font-size="14">
<style>text{fill:#d8dee9;white-space:pre;animation:show .01s both}.c{fill:#88c0d0;font-weight:bold}
@keyframes show{from{opacity:0}to{opacity:1}}@media(prefers-reduced-motion){text{animation:none}}</style>
<rect width="100%%" height="100%%" rx="8" fill="#2e3440"/>
`, columns*9, height)
	for i, l := range lines {
		if l.text == "" {
			continue
		}
		class := ""
		if l.command {
			class = ` class="c"`
		}
		var text strings.Builder
		if err := xml.EscapeText(&text, []byte(l.text)); err != nil {
			return err
		}
		fmt.Fprintf(w, `<text x="16" y="%d"%s style="animation-delay:%.2fs">%s</text>`+"\n", 28+i*lineHeight, class,
			l.at.Seconds(), text.String())
	}
	_, err := io.WriteString(w, "</svg>\n")
	return err
}
