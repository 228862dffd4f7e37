"""Images of predictions: a confusion matrix, and a sheet of samples with their predicted classes.

They are drawn with Pillow and its built-in font. Pillow is installed by newer versions of TensorBoard and by
`declarative_train[images]`."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

    from declarative_train.run.event import SamplePrediction

MOST_DRAWN = 40  # matrices with more classes are not drawn: their cells would be too small
INK, PAPER, LINE = (20, 20, 20), (255, 255, 255), (150, 150, 150)
_RIGHT, _WRONG, _FULL = (20, 110, 50), (190, 30, 30), (8, 48, 107)
_SIDE, _GAP, _TEXT = 480, 8, 20
_LETTERS = 15  # font size: TensorBoard shows images smaller than they are
_PICTURE, _COLUMNS = 120, 4  # side of a sample in pixels, and samples per row


def canvas(width: int, height: int, letters: int = _LETTERS) -> tuple[Image, Any, Any]:
    """Return an empty image, an object that draws on it, and a font. `letters`: size of the font in pixels."""
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, height), PAPER)
    try:
        font: Any = ImageFont.load_default(letters)
    except (TypeError, ImportError):  # Pillow before 10.1, or built without FreeType
        font = ImageFont.load_default()
    return image, ImageDraw.Draw(image), font


def png(image: Image) -> bytes:
    content = io.BytesIO()
    image.save(content, "png")
    return content.getvalue()


def confusion_matrix(title: str, names: Sequence[str], table: Sequence[Sequence[int]]) -> Image:
    """Return a drawn confusion matrix with a title and the `names` of the classes. `table[i][j]`: number of items of
    class i that were predicted as class j; rows are targets, columns predictions. A cell is the darker, the larger its
    share of the row."""
    cell = max(14, min(72, _SIDE // len(table)))
    letters = min(_LETTERS, cell - 2)
    shown = [_short(name, 24) for name in names]
    heads = [_short(name, max(2, cell // 7)) for name in names]
    _, ruler, font = canvas(1, 1, letters)
    left = max(60, int(max(ruler.textlength(name, font=font) for name in shown)) + 2 * _GAP)
    first = 2 * _TEXT + 3 * _GAP
    width, height = left + cell * len(table) + 2 * _GAP, first + cell * len(table) + 2 * _GAP
    line = f"{title}: rows are targets, columns predictions"
    _, ruler, large = canvas(1, 1)
    image, draw, _ = canvas(max(width, int(ruler.textlength(line, font=large)) + 2 * _GAP), height)
    draw.text((_GAP, _GAP), line, fill=INK, font=large)
    for row, counts in enumerate(table):
        top, total = first + row * cell, max(1, sum(counts))
        draw.text((left - _GAP, top + cell // 2), shown[row], fill=INK, font=font, anchor="rm")
        if draw.textlength(heads[row], font=font) <= cell:  # if the name fits; columns are in the order of the rows
            draw.text((left + row * cell + cell // 2, first - _GAP), heads[row], fill=INK, font=font, anchor="ms")
        for column, count in enumerate(counts):
            at, dark = left + column * cell, count / total
            colour = tuple(int(255 - dark * (255 - full)) for full in _FULL)
            draw.rectangle((at, top, at + cell, top + cell), fill=colour, outline=(225, 225, 225))
            if count and draw.textlength(str(count), font=font) <= cell - 2:
                ink = PAPER if dark > 0.5 else INK
                draw.text((at + cell // 2, top + cell // 2), str(count), fill=ink, font=font, anchor="mm")
    return image


def samples_sheet(answers: Sequence[SamplePrediction]) -> Image | None:
    """Return an image of the samples that have an image, or None if there are none. The target and the prediction are
    written below each, in green if the prediction is right, otherwise in red."""
    from PIL import Image

    shown = [(answer, answer.picture) for answer in answers if answer.picture is not None]
    if not shown:
        return None
    columns, rows = min(_COLUMNS, len(shown)), -(-len(shown) // _COLUMNS)
    across, down = _PICTURE + _GAP, _PICTURE + 2 * _TEXT + _GAP
    sheet, draw, font = canvas(columns * across + _GAP, rows * down + _GAP)
    for number, (answer, picture) in enumerate(shown):
        x, y = _GAP + number % _COLUMNS * across, _GAP + number // _COLUMNS * down
        mode = "L" if picture.channels == 1 else "RGB"
        drawn = Image.frombytes(mode, (picture.width, picture.height), picture.pixels)
        scale = _PICTURE / max(picture.width, picture.height)
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        sheet.paste(drawn.resize(size, Image.Resampling.NEAREST), (x, y))
        prediction = f"{_short(answer.predicted, 9)} {answer.probability:.0%}"
        is_right = answer.predicted == answer.target
        draw.text((x, y + _PICTURE + 2), f"is {_short(answer.target, 13)}", fill=INK, font=font)
        draw.text((x, y + _PICTURE + _TEXT), f"got {prediction}", fill=_RIGHT if is_right else _WRONG, font=font)
    return sheet


def samples_table(answers: Sequence[SamplePrediction]) -> str:
    """Return a Markdown table of samples without images, in which wrong predictions are bold."""
    rows = ["| sample | target | predicted | probability |", "|---:|---|---|---:|"]
    for each in answers:
        prediction = each.predicted if each.predicted == each.target else f"**{each.predicted}**"
        rows.append(f"| {each.sample} | {each.target} | {prediction} | {each.probability:.3f} |")
    return "\n".join(rows)


def _short(name: str, most: int = 14) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}~"
